//! The node as its edges see it: real threads over a simulated disk.

mod basics;
mod consume;
mod dedup;
mod support;
