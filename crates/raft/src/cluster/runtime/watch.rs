//! Tokio's channel of the last value, which wakes those who wait in the order in which they came: tokio's own draws it.

use std::pin::pin;
use std::sync::Arc;

use openraft::rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft::rt::{OptionalSend, OptionalSync};
use tokio::sync::{Notify, watch};

/// The channels of the library.
pub(crate) struct OrderedWatch;

/// Sets the value.
pub(crate) struct Sender<T> {
    /// Taken when it is dropped only.
    inner: Option<watch::Sender<T>>,
    changed: Arc<Notify>,
}

/// Sees the value.
pub(crate) struct Receiver<T> {
    inner: watch::Receiver<T>,
    changed: Arc<Notify>,
}

impl Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(first: T) -> (Sender<T>, Receiver<T>) {
        let (sender, inner) = watch::channel(first);
        let changed = Arc::<Notify>::default();
        (Sender { inner: Some(sender), changed: changed.clone() }, Receiver { inner, changed })
    }
}

impl<T> Sender<T> {
    fn inner(&self) -> &watch::Sender<T> {
        self.inner.as_ref().unwrap_or_else(|| unreachable!("it is there until it is dropped"))
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), changed: self.changed.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), changed: self.changed.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Whoever waits sees that the last one has gone.
        drop(self.inner.take());
        self.changed.notify_waiters();
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<OrderedWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        let sent = self.inner().send(value).map_err(|refused| SendError(refused.0));
        self.changed.notify_waiters();
        sent
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let is_modified = self.inner().send_if_modified(modify);
        if is_modified {
            self.changed.notify_waiters();
        }
        is_modified
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.inner().borrow()
    }

    fn subscribe(&self) -> Receiver<T> {
        Receiver { inner: self.inner().subscribe(), changed: self.changed.clone() }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<OrderedWatch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the look: what changes between the two is not missed.
            changed.as_mut().enable();
            match self.inner.has_changed() {
                Ok(true) => {
                    self.inner.mark_unchanged();
                    return Ok(());
                }
                Ok(false) => changed.await,
                // What was set last is seen before the end is.
                Err(_) if self.inner.borrow_and_update().has_changed() => return Ok(()),
                Err(_) => return Err(RecvError(())),
            }
        }
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.inner.borrow()
    }

    fn borrow_and_update(&mut self) -> watch::Ref<'_, T> {
        self.inner.borrow_and_update()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn the_last_value_is_seen_before_the_end() {
        let (sender, mut receiver) = OrderedWatch::channel(0);
        assert_eq!(sender.send(7), Ok(()));
        drop(sender);
        assert!(receiver.changed().await.is_ok());
        assert_eq!(*receiver.borrow_watched(), 7);
        assert!(receiver.changed().await.is_err());
    }

    #[tokio::test]
    async fn who_waits_is_woken_in_order_and_told_of_the_end() {
        let (sender, first) = OrderedWatch::channel(0);
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..20 {
            let (mut receiver, told) = (first.clone(), told.clone());
            waiting.push(tokio::spawn(async move {
                while receiver.changed().await.is_ok() {
                    told.lock().push((number, *receiver.borrow_watched()));
                }
            }));
            tokio::task::yield_now().await;
        }
        drop(first);
        assert_eq!(sender.send(7), Ok(()));
        tokio::task::yield_now().await;
        assert!(!sender.send_if_modified(|_| false));
        assert_eq!(*told.lock(), (0..20).map(|number| (number, 7)).collect::<Vec<_>>());
        drop(sender.clone());
        tokio::task::yield_now().await;
        assert!(waiting.iter().all(|task| !task.is_finished()));
        drop(sender);
        for task in waiting {
            assert!(task.await.is_ok());
        }
        assert_eq!(told.lock().len(), 20);
    }
}
