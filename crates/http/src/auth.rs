//! Who may call what.

mod level;

pub(crate) use level::Level;
