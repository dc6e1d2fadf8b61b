//! What an operator was promised, item by item: the number in a test's name is that of the promise. `cargo xtask tidy` misses
//! one that is gone.

mod damage;
mod full;
mod kills;
mod volume;
