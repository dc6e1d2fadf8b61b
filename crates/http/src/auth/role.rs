//! What a token's holder may do.

use crate::auth::level::Level;

/// A role of the API; a token may name several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// Producing, consuming and reading.
    ReadWrite,
    /// Reads that change nothing.
    ReadOnly,
    /// Producing, and nothing else.
    WriteOnly,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Admin, Self::ReadWrite, Self::ReadOnly, Self::WriteOnly];

    /// Whether it reaches a route of this level.
    pub(crate) fn may(self, level: Level) -> bool {
        match level {
            Level::Public => true,
            Level::ReadOnly => self != Self::WriteOnly,
            Level::WriteOnly => self != Self::ReadOnly,
            Level::ReadWrite => matches!(self, Self::Admin | Self::ReadWrite),
            Level::Admin => self == Self::Admin,
        }
    }
}

/// The roles of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles([bool; Role::ALL.len()]);

impl Roles {
    /// Adds a role.
    pub(super) fn add(&mut self, role: Role) {
        for (is_held, held) in self.0.iter_mut().zip(Role::ALL) {
            *is_held |= held == role;
        }
    }

    /// The roles that are held.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        self.0.into_iter().zip(Role::ALL).filter_map(|(is_held, role)| is_held.then_some(role))
    }

    /// Whether one of them reaches a route of this level; without any, only what is public is reached.
    pub(crate) fn may(self, level: Level) -> bool {
        level == Level::Public || self.iter().any(|role| role.may(level))
    }
}

/// How the roles are called in tokens; an empty name is one that no token can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleNames {
    /// Name of [`Role::Admin`].
    pub admin: String,
    /// Name of [`Role::ReadWrite`].
    pub read_write: String,
    /// Name of [`Role::ReadOnly`].
    pub read_only: String,
    /// Name of [`Role::WriteOnly`].
    pub write_only: String,
}

impl Default for RoleNames {
    fn default() -> Self {
        Self {
            admin: "admin".to_owned(),
            read_write: "read-write".to_owned(),
            read_only: "read-only".to_owned(),
            write_only: "write-only".to_owned(),
        }
    }
}

impl RoleNames {
    /// Adds what `name` stands for; a name that is none of ours stands for nothing.
    pub(super) fn add_to(&self, roles: &mut Roles, name: &str) {
        for role in Role::ALL {
            let own = match role {
                Role::Admin => &self.admin,
                Role::ReadWrite => &self.read_write,
                Role::ReadOnly => &self.read_only,
                Role::WriteOnly => &self.write_only,
            };
            if !name.is_empty() && own == name {
                roles.add(role);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(roles: &[Role], expected: [bool; 5]) {
        let mut held = Roles::default();
        for role in roles {
            held.add(*role);
        }
        assert_eq!(held.iter().collect::<Vec<_>>(), roles);
        let levels =
            [Level::Public, Level::ReadOnly, Level::WriteOnly, Level::ReadWrite, Level::Admin];
        assert_eq!(levels.map(|level| held.may(level)), expected, "{roles:?}");
    }

    #[test]
    fn what_each_role_reaches() {
        check(&[], [true, false, false, false, false]);
        check(&[Role::ReadOnly], [true, true, false, false, false]);
        check(&[Role::WriteOnly], [true, false, true, false, false]);
        check(&[Role::ReadWrite], [true, true, true, true, false]);
        check(&[Role::Admin], [true, true, true, true, true]);
    }

    #[test]
    fn two_roles_reach_what_either_reaches_and_no_more() {
        check(&[Role::ReadOnly, Role::WriteOnly], [true, true, true, false, false]);
    }

    #[test]
    fn an_empty_name_is_nobodys() {
        let names = RoleNames {
            admin: String::new(),
            read_write: "rw".into(),
            read_only: "ro".into(),
            write_only: "wo".into(),
        };
        let mut roles = Roles::default();
        for name in ["", "RW", "admin", "ro "] {
            names.add_to(&mut roles, name);
        }
        assert_eq!(roles, Roles::default());
        names.add_to(&mut roles, "rw");
        assert!(roles.may(Level::ReadWrite));
    }
}
