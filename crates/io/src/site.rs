//! Names for places in the code that make something durable, so that a test can switch one of them off.
//!
//! The real disk ignores them. A name lives on a stack of the current thread: the innermost guard wins.

use std::cell::RefCell;
use std::marker::PhantomData;

thread_local! {
    static SITES: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Names the calls that this thread makes on a disk until the guard is dropped.
#[must_use = "the name ends with the guard"]
pub fn site(name: &'static str) -> SiteGuard {
    SITES.with_borrow_mut(|sites| sites.push(name));
    SiteGuard { on_this_thread: PhantomData }
}

/// Takes the name off again when dropped. Guards of one thread end in reverse order of their making.
pub struct SiteGuard {
    /// Not `Send`: the stack belongs to one thread.
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for SiteGuard {
    fn drop(&mut self) {
        SITES.with_borrow_mut(Vec::pop);
    }
}

/// The innermost name of this thread.
pub(crate) fn current_site() -> Option<&'static str> {
    SITES.with_borrow(|sites| sites.last().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_name_wins() {
        assert_eq!(current_site(), None);
        let outer = site("outer");
        {
            let _inner = site("inner");
            assert_eq!(current_site(), Some("inner"));
        }
        assert_eq!(current_site(), Some("outer"));
        drop(outer);
        assert_eq!(current_site(), None);
    }
}
