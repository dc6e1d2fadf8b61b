//! What a signed token says: when it is valid, from whom, for whom, and what its holder may do.

use serde_json::Value;

use crate::auth::object::{NoObject, Object};
use crate::auth::{AuthOptions, Denied, Identity, RoleNames, Roles};

/// The operator's demands.
#[derive(Debug)]
pub(super) struct Rules {
    issuer: Option<String>,
    audience: Option<String>,
    skew_s: f64,
    require_exp: bool,
    roles_claim: String,
    roles_array_claim: String,
    role_names: RoleNames,
}

/// Claims that hold.
#[derive(Debug, PartialEq)]
pub(super) struct Checked {
    pub(super) identity: Identity,
    /// Whether the token ends by itself.
    pub(super) ends: bool,
}

impl Rules {
    pub(super) fn new(options: &AuthOptions) -> Self {
        Self {
            issuer: options.issuer.clone(),
            audience: options.audience.clone(),
            skew_s: options.clock_skew.as_secs_f64(),
            require_exp: options.require_exp,
            roles_claim: options.roles_claim.clone(),
            roles_array_claim: options.roles_array_claim.clone(),
            role_names: options.role_names.clone(),
        }
    }

    /// Units: `now_s` is seconds since the Unix epoch, as are the claims.
    pub(super) fn check(&self, claims: &Object, now_s: f64) -> Result<Checked, Denied> {
        let seconds = |name| claims.number(name).map_err(|_| Denied::Claims);
        let (exp, nbf, iat) = (seconds("exp")?, seconds("nbf")?, seconds("iat")?);
        if exp.is_none() && self.require_exp {
            return Err(Denied::NoExpiry);
        }
        if exp.is_some_and(|exp| now_s > exp + self.skew_s) {
            return Err(Denied::Expired);
        }
        if nbf.is_some_and(|nbf| nbf > now_s + self.skew_s) {
            return Err(Denied::NotYetValid);
        }
        if iat.is_some_and(|iat| iat > now_s + self.skew_s) {
            return Err(Denied::IssuedInFuture);
        }
        let is_from = |issuer: &String| claims.text("iss").ok().flatten() == Some(issuer);
        if !self.issuer.as_ref().is_none_or(is_from) {
            return Err(Denied::Issuer);
        }
        let is_for = |audience: &String| is_or_holds(claims.value("aud"), audience);
        if !self.audience.as_ref().is_none_or(is_for) {
            return Err(Denied::Audience);
        }
        let roles = self.roles(claims).map_err(|_| Denied::Claims)?;
        let sub = claims.text("sub").map_err(|_| Denied::Claims)?;
        let sub = sub.filter(|sub| !sub.is_empty()).map(str::to_owned);
        Ok(Checked { identity: Identity { sub, roles }, ends: exp.is_some() })
    }

    fn roles(&self, claims: &Object) -> Result<Roles, NoObject> {
        let mut roles = Roles::default();
        for name in [&self.roles_claim, &self.roles_array_claim] {
            let may_be_text = *name == self.roles_claim;
            let may_be_array = *name == self.roles_array_claim;
            let value = if name.is_empty() { None } else { claims.value(name) };
            match value {
                None => {}
                Some(Value::String(role)) if may_be_text => {
                    self.role_names.add_to(&mut roles, role);
                }
                Some(Value::Array(values)) if may_be_array => {
                    for value in values {
                        self.role_names.add_to(&mut roles, value.as_str().ok_or(NoObject)?);
                    }
                }
                Some(_) => return Err(NoObject),
            }
        }
        Ok(roles)
    }
}

fn is_or_holds(value: Option<&Value>, wanted: &str) -> bool {
    match value {
        Some(Value::String(text)) => text == wanted,
        Some(Value::Array(values)) => values.iter().any(|value| value.as_str() == Some(wanted)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Role;
    use crate::auth::tests::options;

    const NOW_S: f64 = 1_000_000.0;

    fn verdict(rules: &Rules, claims: &str) -> Result<Checked, Denied> {
        rules.check(&Object::read(claims.as_bytes()).unwrap(), NOW_S)
    }

    fn check(claims: &str, expected: Result<(), Denied>) {
        let rules = Rules::new(&options());
        assert_eq!(verdict(&rules, claims).map(|_| ()), expected, "{claims}");
    }

    #[test]
    fn times_have_a_skew_of_30_s() {
        check(r#"{"exp":999970}"#, Ok(()));
        check(r#"{"exp":999969.9}"#, Err(Denied::Expired));
        check(r#"{"exp":-1}"#, Err(Denied::Expired));
        check(r#"{"exp":18446744073709551615}"#, Ok(()));
        check(r#"{"exp":1e300}"#, Ok(()));
        check(r#"{"nbf":1000030,"iat":1000030}"#, Ok(()));
        check(r#"{"nbf":1000031}"#, Err(Denied::NotYetValid));
        check(r#"{"iat":1000030.5}"#, Err(Denied::IssuedInFuture));
        check(r#"{"exp":null,"nbf":null,"iat":null}"#, Ok(()));
        for name in ["exp", "nbf", "iat"] {
            for value in [r#""999999999999""#, "true", "[1000000]", "{}"] {
                check(&format!(r#"{{"{name}":{value}}}"#), Err(Denied::Claims));
            }
        }
    }

    #[test]
    fn an_end_can_be_required() {
        let mut options = options();
        assert!(!verdict(&Rules::new(&options), "{}").unwrap().ends);
        options.require_exp = true;
        let rules = Rules::new(&options);
        assert_eq!(verdict(&rules, "{}").err(), Some(Denied::NoExpiry));
        assert_eq!(verdict(&rules, r#"{"exp":null}"#).err(), Some(Denied::NoExpiry));
        assert!(verdict(&rules, r#"{"exp":1000000}"#).unwrap().ends);
    }

    #[test]
    fn issuer_and_audience_where_they_are_set() {
        check(r#"{"iss":5,"aud":{}}"#, Ok(()));
        let mut options = options();
        options.issuer = Some("https://issuer".to_owned());
        options.audience = Some("queen".to_owned());
        let rules = Rules::new(&options);
        let check = |claims: &str, expected| {
            assert_eq!(verdict(&rules, claims).map(|_| ()), expected, "{claims}");
        };
        check(r#"{"iss":"https://issuer","aud":"queen"}"#, Ok(()));
        check(r#"{"iss":"https://issuer","aud":["a","queen",5]}"#, Ok(()));
        for issuer in
            [r#""https://issuer/""#, r#""HTTPS://issuer""#, "null", r#"["https://issuer"]"#]
        {
            let claims = format!(r#"{{"iss":{issuer},"aud":"queen"}}"#);
            check(&claims, Err(Denied::Issuer));
        }
        for audience in [r#""queens""#, r#"["a"]"#, "[]", "null", r#"{"queen":1}"#] {
            let claims = format!(r#"{{"iss":"https://issuer","aud":{audience}}}"#);
            check(&claims, Err(Denied::Audience));
        }
    }

    #[test]
    fn roles_come_from_a_text_and_from_a_list() {
        let rules = Rules::new(&options());
        let roles = |claims: &str| {
            verdict(&rules, claims).map(|checked| checked.identity.roles.iter().collect::<Vec<_>>())
        };
        assert_eq!(roles("{}"), Ok(vec![]));
        assert_eq!(roles(r#"{"role":"read-only"}"#), Ok(vec![Role::ReadOnly]));
        assert_eq!(roles(r#"{"roles":["x","write-only"]}"#), Ok(vec![Role::WriteOnly]));
        let both = r#"{"role":"read-only","roles":["write-only"]}"#;
        assert_eq!(roles(both), Ok(vec![Role::ReadOnly, Role::WriteOnly]));
        assert_eq!(roles(r#"{"role":"Admin","roles":null}"#), Ok(vec![]));
        for claims in [
            r#"{"role":{"admin":true}}"#,
            r#"{"role":["admin"]}"#,
            r#"{"roles":"admin"}"#,
            r#"{"roles":["admin",1]}"#,
        ] {
            assert_eq!(roles(claims), Err(Denied::Claims), "{claims}");
        }
    }

    #[test]
    fn claim_names_are_settings() {
        let mut options = options();
        options.roles_claim = "scope".to_owned();
        options.roles_array_claim = "scope".to_owned();
        let rules = Rules::new(&options);
        for claims in
            [r#"{"scope":"admin"}"#, r#"{"scope":["admin"]}"#, r#"{"scope":"admin","role":5}"#]
        {
            let roles = verdict(&rules, claims).unwrap().identity.roles;
            assert_eq!(roles.iter().collect::<Vec<_>>(), [Role::Admin], "{claims}");
        }
        options.roles_claim = String::new();
        options.roles_array_claim = String::new();
        let rules = Rules::new(&options);
        let roles = verdict(&rules, r#"{"":"admin"}"#).unwrap().identity.roles;
        assert_eq!(roles, Roles::default());
    }

    #[test]
    fn the_subject() {
        let rules = Rules::new(&options());
        let sub = |claims: &str| verdict(&rules, claims).map(|checked| checked.identity.sub);
        assert_eq!(sub(r#"{"sub":"a b"}"#), Ok(Some("a b".to_owned())));
        assert_eq!(sub(r#"{"sub":""}"#), Ok(None));
        assert_eq!(sub("{}"), Ok(None));
        assert_eq!(sub(r#"{"sub":7}"#), Err(Denied::Claims));
    }
}
