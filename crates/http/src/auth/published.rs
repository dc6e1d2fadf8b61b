//! Keys that an identity provider publishes, and the task that keeps them current.
//!
//! ```text
//!   requests --unknown key--> wanted round -> Keeper: one fetch at a time -> watched state -> all who wait
//!                                             also at start and every `refresh`
//! ```
//!
//! Fetches belong to the task and never to a request: a caller that leaves stops none. Tokens with invented key
//! ids cost one fetch per pause, whoever sends how many; the keys that are there stay until a fetch brings others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::auth::algorithm::Algorithm;
use crate::auth::fetch::{FetchError, Fetcher};
use crate::auth::key_set::KeySet;
use crate::auth::keys::PublicKey;
use crate::auth::options::{AuthError, JwksOptions};

/// First wait after a failed fetch; it doubles up to the setting.
const RETRY_FIRST: Duration = Duration::from_secs(5);

/// What the task tells the requests.
#[derive(Clone, Debug, Default)]
struct State {
    keys: Arc<KeySet>,
    /// Fetches that have ended, well or not.
    rounds: u64,
    is_fetching: bool,
    /// When the last one began.
    began: Option<Instant>,
}

impl State {
    fn may_fetch(&self, now: Instant, pause: Duration) -> bool {
        !self.is_fetching && self.began.is_none_or(|began| now.duration_since(began) >= pause)
    }
}

/// The published keys as requests see them.
#[derive(Debug)]
pub(super) struct PublishedKeys {
    state: watch::Receiver<State>,
    wanted: Arc<watch::Sender<u64>>,
    pause: Duration,
    /// How long a request waits at most; longer than a fetch takes.
    wait_max: Duration,
}

/// Keeps published keys current while [`Keeper::run`] runs.
#[must_use = "without it there are no keys"]
pub struct Keeper {
    fetcher: Fetcher,
    options: JwksOptions,
    state: watch::Sender<State>,
    /// The number of rounds that some request waits for.
    wanted: Arc<watch::Sender<u64>>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Both sides of one document.
pub(super) fn open(options: JwksOptions) -> Result<(PublishedKeys, Keeper), AuthError> {
    let fetcher = Fetcher::new(&options.url, options.timeout)?;
    let (sender, state) = watch::channel(State::default());
    let wanted = Arc::new(watch::Sender::new(0));
    let keys = PublishedKeys {
        state,
        wanted: Arc::clone(&wanted),
        pause: options.unknown_key_pause,
        wait_max: options.timeout.saturating_mul(2),
    };
    Ok((keys, Keeper { fetcher, options, state: sender, wanted }))
}

impl PublishedKeys {
    /// The key of a token, after another fetch if it is not known and one is due.
    pub(super) async fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Option<Arc<PublicKey>> {
        let known = self.state.borrow().keys.find(id, algorithm);
        if known.is_some() {
            return known;
        }
        tokio::time::timeout(self.wait_max, self.find_newer(id, algorithm)).await.ok().flatten()
    }

    async fn find_newer(&self, id: Option<&str>, algorithm: Algorithm) -> Option<Arc<PublicKey>> {
        let mut state = self.state.clone();
        loop {
            let (rounds, is_asked) = {
                let now = state.borrow_and_update();
                let is_asked = now.may_fetch(Instant::now(), self.pause);
                if !is_asked && !now.is_fetching {
                    // It may have come since the first look.
                    return now.keys.find(id, algorithm);
                }
                (now.rounds, is_asked)
            };
            if is_asked {
                // Whoever has seen the same round asks for the same fetch.
                self.wanted.send_if_modified(|wanted| {
                    let is_first = *wanted <= rounds;
                    *wanted = (*wanted).max(rounds + 1);
                    is_first
                });
            }
            // Without its task nothing newer comes.
            let ended = state.wait_for(|now| now.rounds != rounds).await.ok()?;
            let found = ended.keys.find(id, algorithm);
            // A fetch that ran already may have begun before the key was there: then one more.
            if is_asked || found.is_some() {
                return found;
            }
        }
    }
}

impl Keeper {
    /// Fetches at once, every `refresh`, and when a request needs a key that is not there; never ends.
    pub async fn run(self) {
        let mut retry = RETRY_FIRST;
        loop {
            let began = Instant::now();
            self.state.send_modify(|state| {
                state.is_fetching = true;
                state.began = Some(began);
            });
            let fetched = self.fetch().await;
            let pause = match &fetched {
                Ok(_) => {
                    retry = RETRY_FIRST;
                    self.options.refresh
                }
                Err(error) => {
                    self.warn(error);
                    let pause = retry.min(self.options.refresh);
                    retry = retry.saturating_mul(2);
                    pause
                }
            };
            self.state.send_modify(|state| {
                state.is_fetching = false;
                state.rounds += 1;
                if let Ok(keys) = fetched {
                    replace(&mut state.keys, keys);
                }
            });
            self.until_due(pause).await;
        }
    }

    async fn fetch(&self) -> Result<KeySet, Failure> {
        let document = self.fetcher.get().await?;
        Ok(KeySet::read(&document)?)
    }

    fn warn(&self, error: &Failure) {
        let url = &self.options.url;
        let known = self.state.borrow().keys.len();
        if known == 0 {
            warn!(url, %error, "no published keys: tokens that need one are answered 401 until they come");
        } else {
            warn!(url, %error, keys = known, "published keys were not read again: the known ones stay");
        }
    }

    /// Waits for the next regular fetch, or for a request that asks for one.
    async fn until_due(&self, pause: Duration) {
        let rounds = self.state.borrow().rounds;
        let mut wanted = self.wanted.subscribe();
        let asked = wanted.wait_for(|wanted| *wanted > rounds);
        // Asked or not, and the sender is this task's own: the next round is due.
        drop(tokio::time::timeout(pause, asked).await);
    }
}

fn replace(keys: &mut Arc<KeySet>, fetched: KeySet) {
    if **keys == fetched {
        return;
    }
    if fetched.len() == 0 {
        warn!("the published document holds no key that can be used here");
    } else {
        info!(keys = fetched.len(), "published keys have changed");
    }
    *keys = Arc::new(fetched);
}

/// Why there are no newer keys.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("the document is no set of keys: {0}")]
    Document(#[from] serde_json::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fetch_at_a_time_and_one_per_pause() {
        let (now, pause) = (Instant::now(), Duration::from_secs(5));
        let mut state = State::default();
        assert!(state.may_fetch(now, pause));
        state.began = Some(now);
        state.is_fetching = true;
        assert!(!state.may_fetch(now + Duration::from_mins(1), pause));
        state.is_fetching = false;
        assert!(!state.may_fetch(now + Duration::from_millis(4999), pause));
        assert!(state.may_fetch(now + pause, pause));
    }
}
