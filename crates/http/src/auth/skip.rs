//! Paths that the operator leaves open.

/// A list of paths.
#[derive(Debug)]
pub(super) struct SkipPaths(Vec<String>);

impl SkipPaths {
    pub(super) fn new(paths: Vec<String>) -> Self {
        Self(paths)
    }

    /// Whether a request's path stands there, as it was sent: routes have one spelling too.
    pub(super) fn holds(&self, path: &str) -> bool {
        self.0.iter().any(|entry| {
            let is_prefix = entry.len() > 1 && entry.ends_with('/');
            entry == path || is_prefix && path.starts_with(entry)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(entries: &[&str], path: &str, expected: bool) {
        let paths = SkipPaths::new(entries.iter().map(|entry| (*entry).to_owned()).collect());
        assert_eq!(paths.holds(path), expected, "{entries:?} {path}");
    }

    #[test]
    fn entries_are_paths_and_those_with_a_slash_at_the_end_prefixes() {
        check(&["/health", "/"], "/health", true);
        check(&["/health", "/"], "/", true);
        check(&["/health", "/"], "/healthy", false);
        check(&["/health", "/"], "/health/", false);
        check(&["/health", "/"], "/api/v1/push", false);
        check(&["/api/v1/pop/"], "/api/v1/pop/queue/a", true);
        check(&["/api/v1/pop/"], "/api/v1/pop", false);
        check(&["/api/v1/pop/"], "/api/v1/push", false);
        check(&["/api/v1/pop/"], "/API/v1/pop/queue/a", false);
        check(&[], "/", false);
    }
}
