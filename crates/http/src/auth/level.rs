//! What a route demands of its caller.

/// The least access that a route asks for, when authentication is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Anybody.
    Public,
    /// Reads that change nothing.
    ReadOnly,
    /// Producing, and nothing else.
    WriteOnly,
    /// Consuming, and changes that destroy nothing at large.
    ReadWrite,
    /// Deletes and the operation of the node.
    Admin,
}
