//! Authentication as the settings have it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use queen_http::{AuthOptions, Authenticator, JwksOptions, Keeper, RoleNames};
use tokio::runtime::Runtime;

use crate::config::Settings;

/// A token with an unknown key has published keys read again, at most this often.
const UNKNOWN_KEY_PAUSE: Duration = Duration::from_secs(5);

/// What lets callers in, when the settings ask for it.
pub(crate) struct Auth(Option<(Authenticator, Option<Keeper>)>);

impl Auth {
    /// # Errors
    /// Settings that nobody can be let in with; the text is that of the FATAL line.
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Self> {
        if !settings.jwt_enabled {
            return Ok(Self(None));
        }
        let made = Authenticator::new(options(settings)).context("JWT_ENABLED is true")?;
        Ok(Self(Some(made)))
    }

    /// Begins to read published keys, if there are any.
    pub(crate) fn start(self, runtime: &Runtime) -> Option<Arc<Authenticator>> {
        let (authenticator, keeper) = self.0?;
        if let Some(keeper) = keeper {
            runtime.spawn(keeper.run());
        }
        Some(Arc::new(authenticator))
    }
}

/// The settings of authentication, whether it is on or not.
pub(crate) fn options(settings: &Settings) -> AuthOptions {
    let filled = |text: &String| if text.is_empty() { None } else { Some(text.clone()) };
    let jwks = filled(&settings.jwt_jwks_url).map(|url| JwksOptions {
        url,
        refresh: Duration::from_secs(settings.jwt_jwks_refresh_s),
        timeout: Duration::from_millis(settings.jwt_jwks_timeout_ms),
        unknown_key_pause: UNKNOWN_KEY_PAUSE,
    });
    let skip_paths = settings.jwt_skip_paths.split(',').map(str::trim);
    AuthOptions {
        algorithm: settings.jwt_algorithm.0,
        secret: settings.jwt_secret.text().map(str::to_owned),
        public_key: settings.jwt_public_key.text().map(str::to_owned),
        jwks,
        issuer: filled(&settings.jwt_issuer),
        audience: filled(&settings.jwt_audience),
        clock_skew: Duration::from_secs(settings.jwt_clock_skew_s),
        require_exp: settings.jwt_require_exp,
        roles_claim: settings.jwt_roles_claim.clone(),
        roles_array_claim: settings.jwt_roles_array_claim.clone(),
        role_names: RoleNames {
            admin: settings.jwt_role_admin.clone(),
            read_write: settings.jwt_role_read_write.clone(),
            read_only: settings.jwt_role_read_only.clone(),
            write_only: settings.jwt_role_write_only.clone(),
        },
        skip_paths: skip_paths.filter(|path| !path.is_empty()).map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    const RSA: &str = include_str!("../../http/tests/keys/rsa-a.pub.pem");
    const ED: &str = include_str!("../../http/tests/keys/ed.pub.pem");

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let all = pairs.iter().chain(&[("JWT_ENABLED", "true")]);
        let all = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Environment::new(all)).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn where_nothing_is_set_the_defaults_count() {
        let settings = Settings::read(&Environment::new([])).unwrap();
        assert!(options(&settings) == AuthOptions::default());
    }

    #[test]
    fn every_kind_of_key_starts() {
        let long = "a secret that is long enough to be one";
        let escaped = RSA.replace('\n', "\\n");
        for pairs in [
            &[("JWT_SECRET", long)][..],
            &[("JWT_SECRET", long), ("JWT_ALGORITHM", "HS512")],
            &[("JWT_SECRET", long), ("JWT_ALGORITHM", "auto")],
            &[("JWT_SECRET", long), ("JWT_ALGORITHM", "")],
            &[("JWT_PUBLIC_KEY", RSA), ("JWT_ALGORITHM", "RS256")],
            &[("JWT_PUBLIC_KEY", &escaped), ("JWT_ALGORITHM", "auto")],
            &[("JWT_PUBLIC_KEY", ED), ("JWT_ALGORITHM", "EdDSA")],
            &[("JWT_JWKS_URL", "http://127.0.0.1:1/keys"), ("JWT_ALGORITHM", "RS384")],
        ] {
            let settings = read(pairs).unwrap_or_else(|error| panic!("{pairs:?}: {error}"));
            assert!(Auth::open(&settings).unwrap().0.is_some(), "{pairs:?}");
        }
        let off = Settings::read(&Environment::new([])).unwrap();
        assert!(Auth::open(&off).unwrap().0.is_none());
    }

    #[test]
    fn what_nobody_can_be_let_in_with_names_its_variable() {
        for (pairs, name) in [
            (&[][..], "JWT_SECRET"),
            (&[("JWT_SECRET", "")], "JWT_SECRET"),
            (&[("JWT_SECRET", " \t")], "JWT_SECRET"),
            (&[("JWT_PUBLIC_KEY", " "), ("JWT_ALGORITHM", "auto")], "JWT_PUBLIC_KEY"),
            (&[("JWT_PUBLIC_KEY", RSA)], "JWT_SECRET"),
            (&[("JWT_SECRET", RSA)], "JWT_SECRET"),
            (&[("JWT_ALGORITHM", "RS256"), ("JWT_SECRET", "s3cr3t")], "JWT_PUBLIC_KEY"),
            (&[("JWT_ALGORITHM", "RS256"), ("JWT_PUBLIC_KEY", ED)], "JWT_PUBLIC_KEY"),
            (&[("JWT_ALGORITHM", "auto"), ("JWT_PUBLIC_KEY", "s3cr3t")], "JWT_PUBLIC_KEY"),
            (&[("JWT_ALGORITHM", "auto")], "JWT_JWKS_URL"),
            (&[("JWT_ALGORITHM", "auto"), ("JWT_JWKS_URL", "issuer/keys")], "JWT_JWKS_URL"),
            (&[("JWT_ALGORITHM", "auto"), ("JWT_JWKS_URL", "http://u:s3cr3t@h/")], "JWT_JWKS_URL"),
            (&[("JWT_SECRET", "s3cr3t"), ("JWT_SKIP_PATHS", "/health,status")], "JWT_SKIP_PATHS"),
        ] {
            let error = read(pairs).unwrap_err();
            assert!(error.contains(name), "{pairs:?}: {error}");
            assert!(!error.contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn the_list_of_open_paths() {
        let open = |text| {
            let pairs = [("JWT_SECRET", "s"), ("JWT_SKIP_PATHS", text)];
            options(&read(&pairs).unwrap()).skip_paths
        };
        assert_eq!(open("/health, /metrics/ ,,"), ["/health", "/metrics/"]);
        assert_eq!(open(""), [""; 0]);
        let settings = read(&[("JWT_SECRET", "s")]).unwrap();
        let default = ["/health", "/metrics/prometheus", "/metrics", "/"];
        assert_eq!(options(&settings).skip_paths, default);
    }
}
