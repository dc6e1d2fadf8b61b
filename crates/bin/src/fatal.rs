//! The text of the FATAL line: every cause once.
//!
//! Errors of the layers below name their cause in their own text and as their source, so that a chain as it is
//! would say the same two or three times.

/// The chain of an error as one text, without what was said before.
pub(crate) fn text(reason: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in reason.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    without_echo(&text).to_owned()
}

/// Cuts endings that repeat what stands right before them, as in `a: b: b`.
fn without_echo(mut text: &str) -> &str {
    const MARK: &str = ": ";
    while let Some(shorter) = text.match_indices(MARK).find_map(|(at, _)| {
        let (before, after) = text.split_at_checked(at)?;
        let after = after.strip_prefix(MARK)?;
        let earlier = before.strip_suffix(after)?;
        (earlier.is_empty() || earlier.ends_with(MARK)).then_some(before)
    }) {
        text = shorter;
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn every_cause_is_said_once() {
        let cause = || anyhow!("permission denied (os error 13)");
        assert_eq!(text(&cause()), "permission denied (os error 13)");
        let plain = Err::<(), _>(cause()).context("store: not opened").unwrap_err();
        assert_eq!(text(&plain), "store: not opened: permission denied (os error 13)");
        let twice = Err::<(), _>(cause())
            .context("store: permission denied (os error 13)")
            .context("open: store: permission denied (os error 13)")
            .unwrap_err();
        assert_eq!(text(&twice), "open: store: permission denied (os error 13)");
    }

    #[test]
    fn a_text_does_not_repeat_its_end() {
        assert_eq!(text(&anyhow!("a: b: c: b: c: c")), "a: b: c");
        assert_eq!(text(&anyhow!("a: a")), "a");
        assert_eq!(text(&anyhow!("ab: b")), "ab: b");
        assert_eq!(text(&anyhow!("")), "");
    }
}
