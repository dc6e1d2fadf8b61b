//! Boot and stop.
//!
//! ```text
//!   settings -> logging -> bind, serve (health: 503 settling) -> open the directory -> gate opens
//!   signal -> accept no more, answer parked pops -> last answers -> last checkpoint -> exit 0
//! ```
//!
//! The listener is bound first, so that a wrong port costs no recovery and a long load can be watched. A signal
//! during the load ends the process at once, which is safe: nothing was acknowledged. So does a second signal.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use metrics_exporter_prometheus::PrometheusRecorder;
use queen_broker::End;
use queen_broker::api::Api;
use queen_http::{App, AppOptions, Gate, HttpStats, ServeOptions, SubscribeDefault, serve};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::auth::Auth;
use crate::config::{Environment, Settings, show};
use crate::descriptors;
use crate::metrics::{NodeMetrics, resident_bytes};
use crate::runtime::{self, Hooks};

/// How long a request body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// Partitions in a queue's detail at most.
const PARTITIONS_MAX: usize = 100_000;
/// Exit code of a node that only has to be started again.
const RESTART: u8 = 75;
/// How often the recorder is tended.
const UPKEEP: Duration = Duration::from_secs(5);

/// The node as this program needs it.
pub(crate) trait Broker {
    /// What HTTP calls.
    type Api: Api;

    /// Lets the calls through the gate; they are refused after [`Broker::stop`].
    fn open(&self, gate: &Gate<Self::Api>);

    /// Completes with the reason when nothing that the node holds is to be believed any more.
    fn must_end(&self) -> impl Future<Output = End> + Send + 'static;

    /// Answers parked pops empty, now and from now on.
    fn begin_stop(&self);

    /// Finishes what is planned and writes a last checkpoint; blocks.
    ///
    /// # Errors
    /// Why the node had stopped serving before, or could not stop in order.
    fn stop(self) -> anyhow::Result<()>;
}

/// What a node is opened with.
pub(crate) struct Boot<'a> {
    pub(crate) settings: &'a Settings,
    /// Where the node registers its series.
    pub(crate) recorder: Arc<PrometheusRecorder>,
    /// To be set by a node that wants to know when no request is at hand.
    pub(crate) hooks: Hooks,
    /// Where this node listens.
    #[cfg_attr(not(test), expect(dead_code, reason = "the node of this build does not ask"))]
    pub(crate) address: SocketAddr,
}

/// Runs a node until a signal stops it; 75 when it has to be started again.
///
/// # Errors
/// The start is refused; the text is that of the FATAL line.
pub(crate) fn run<B: Broker>(
    settings: &Settings,
    environment: &Environment,
    open: impl FnOnce(&Boot<'_>) -> anyhow::Result<B>,
) -> anyhow::Result<ExitCode> {
    announce(settings, environment);
    // Before the directory is opened: a wrong key costs no recovery.
    let auth = Auth::open(settings)?;
    let hooks = Hooks::default();
    let runtime = runtime::build(settings.http_threads.0, &hooks)
        .context("QUEEN_HTTP_THREADS: the system gives no threads")?;
    let signals = runtime.block_on(async { Signals::listen() }).context("no signal handlers")?;
    let is_open = Arc::new(AtomicBool::new(false));
    let stopped = signals.watch(&runtime, Arc::clone(&is_open));
    let node = Node { settings, auth, hooks, runtime, is_open };
    node.run(open, stopped)
}

/// Logs what this node runs with.
fn announce(settings: &Settings, environment: &Environment) {
    info!(version = env!("CARGO_PKG_VERSION"), server = %settings.server_id, "queen starts");
    for (area, line) in show::areas(settings) {
        info!("{area}: {line}");
    }
    if !environment.unknown().is_empty() {
        let names = environment.unknown().join(" ");
        warn!("settings that this build does not know are set and have no effect: {names}");
    }
}

/// The pieces that live as long as the node.
struct Node<'a> {
    settings: &'a Settings,
    auth: Auth,
    hooks: Hooks,
    runtime: Runtime,
    /// Set once a signal has to wait for an orderly stop.
    is_open: Arc<AtomicBool>,
}

impl Node<'_> {
    fn run<B: Broker>(
        self,
        open: impl FnOnce(&Boot<'_>) -> anyhow::Result<B>,
        stopped: impl Future<Output = ()>,
    ) -> anyhow::Result<ExitCode> {
        let listener = self.runtime.block_on(bind(self.settings))?;
        let address = listener.local_addr().context("the listener has no address")?;
        info!(%address, "listening");

        let stats = Arc::new(HttpStats::new());
        let metrics = Arc::new(NodeMetrics::new(Arc::clone(&stats), &self.settings.server_id.0));
        let gate = Arc::new(Gate::new());
        let auth = self.auth.start(&self.runtime);
        let app = AppOptions { auth, ..app_options(self.settings, Arc::clone(&stats), &metrics) };
        let app = App::new(Arc::clone(&gate), app);
        let (stop, mut stopping) = watch::channel(false);
        let until = async move {
            // The sender outlives the server; without it the server stops too.
            drop(stopping.wait_for(|is_stopping| *is_stopping).await);
        };
        let serving = serve_options(self.settings);
        let served = self.runtime.spawn(serve(listener, Arc::new(app), serving, until));
        self.runtime.spawn(upkeep(Arc::clone(&metrics), Arc::clone(&stats)));

        let started = Instant::now();
        let boot = Boot {
            settings: self.settings,
            recorder: metrics.recorder(),
            hooks: self.hooks.clone(),
            address,
        };
        let broker = match open(&boot) {
            Ok(broker) => broker,
            Err(reason) => {
                self.runtime.shutdown_background();
                return Err(reason);
            }
        };
        broker.open(&gate);
        self.is_open.store(true, Ordering::SeqCst);
        info!(%address, took_ms = millis(started.elapsed()), "serving");

        let must_end = broker.must_end();
        let ended = self.runtime.block_on(async {
            tokio::select! {
                reason = must_end => Some(reason),
                () = stopped => None,
            }
        });
        if let Some(end) = ended {
            // No last checkpoint: it would write what is damaged, or what is replaced at the next start.
            self.runtime.shutdown_background();
            return match end {
                End::Damage(reason) => Err(anyhow::anyhow!(reason)),
                End::Restart(_) => Ok(ExitCode::from(RESTART)),
            };
        }
        info!("stopping");
        let stopping = Instant::now();
        stop.send_replace(true);
        broker.begin_stop();
        if let Err(error) = self.runtime.block_on(served) {
            warn!(%error, "the listener ended abnormally");
        }
        let stopped = broker.stop();
        // Handlers of dropped connections may still be there; they have nobody to answer.
        self.runtime.shutdown_background();
        // Said once more, on the FATAL line: the node may have met its failure long before.
        stopped.context("the node did not stop in order")?;
        info!(took_ms = millis(stopping.elapsed()), "stopped");
        Ok(ExitCode::SUCCESS)
    }
}

async fn bind(settings: &Settings) -> anyhow::Result<TcpListener> {
    let (host, port) = (&*settings.bind_addr.0, settings.port);
    let port_number = u16::try_from(port).context("PORT is above 65535")?;
    let refused = || format!("cannot listen on QUEEN_BIND_ADDR={host} PORT={port}");
    let mut last = None;
    for address in tokio::net::lookup_host((host, port_number)).await.with_context(refused)? {
        match listen(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into());
    Err(error).with_context(refused)
}

/// Connections that may wait to be taken. Beyond it a burst of clients waits seconds for the system's retries.
const BACKLOG: u32 = 4096;

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restart may listen where connections of the one before have not ended yet.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Limits of the listener that leave the logs their file descriptors.
fn serve_options(settings: &Settings) -> ServeOptions {
    let defaults = ServeOptions::default();
    let connections_max = descriptors::connections_max(defaults.connections_max, settings.fd_cache);
    ServeOptions { connections_max, ..defaults }
}

fn app_options(
    settings: &Settings,
    stats: Arc<HttpStats>,
    metrics: &Arc<NodeMetrics>,
) -> AppOptions {
    let metrics = Arc::clone(metrics);
    AppOptions {
        version: env!("CARGO_PKG_VERSION"),
        body_bytes_max: usize::try_from(settings.max_body_bytes).unwrap_or(usize::MAX),
        body_timeout: BODY_TIMEOUT,
        default_timeout: Duration::from_millis(settings.default_timeout_ms),
        statement_timeout: Duration::from_millis(settings.statement_timeout_ms),
        subscribe_default: SubscribeDefault::parse(&settings.subscription_mode),
        auth: None,
        tenancy_header: settings.tenancy_header,
        partitions_max: PARTITIONS_MAX,
        stats,
        prometheus: Arc::new(move || metrics.render()),
        resident_bytes: Arc::new(resident_bytes),
    }
}

async fn upkeep(metrics: Arc<NodeMetrics>, stats: Arc<HttpStats>) {
    let mut ticks = tokio::time::interval(UPKEEP);
    let (mut before, mut is_trimmed) = (0, true);
    loop {
        ticks.tick().await;
        metrics.upkeep();
        // What a burst of requests needed is given back once it is over.
        let requests = stats.requests();
        let is_quiet = std::mem::replace(&mut before, requests) == requests;
        if is_quiet && !std::mem::replace(&mut is_trimmed, is_quiet) {
            tokio::task::spawn_blocking(queen_store::trim_memory);
        }
        is_trimmed &= is_quiet;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The two signals that ask for a stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Completes with the first signal of an open node; all others end the process.
    fn watch(
        mut self,
        runtime: &Runtime,
        is_open: Arc<AtomicBool>,
    ) -> impl Future<Output = ()> + use<> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        runtime.spawn(async move {
            let name = self.next().await;
            if !is_open.load(Ordering::SeqCst) {
                info!("{name} while the node was loading: nothing to stop");
                exit(0);
            }
            info!("{name}: a second signal ends at once");
            sender.send(()).unwrap_or_default();
            let name = self.next().await;
            warn!("{name} again: the process ends without a last checkpoint");
            exit(1);
        });
        async move {
            // A lost sender means a lost runtime: stop as well.
            receiver.await.unwrap_or_default();
        }
    }
}

#[expect(clippy::exit, reason = "the main thread is loading or stopping and cannot be asked")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc;

    use super::*;
    use queen_broker::Broker as RealBroker;

    struct FakeBroker(mpsc::Sender<&'static str>);

    impl Broker for FakeBroker {
        type Api = RealBroker;

        /// Stays closed: no test asks it.
        fn open(&self, _: &Gate<RealBroker>) {}

        fn must_end(&self) -> impl Future<Output = End> + Send + 'static {
            std::future::pending()
        }

        fn begin_stop(&self) {
            self.0.send("stopping").unwrap();
        }

        fn stop(self) -> anyhow::Result<()> {
            self.0.send("stopped")?;
            Ok(())
        }
    }

    fn settings() -> Settings {
        let pairs = [("PORT", "0"), ("QUEEN_BIND_ADDR", "127.0.0.1"), ("QUEEN_HTTP_THREADS", "1")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Settings::read(&Environment::new(pairs)).unwrap()
    }

    fn node(settings: &Settings) -> Node<'_> {
        let hooks = Hooks::default();
        let runtime = runtime::build(1, &hooks).unwrap();
        let auth = Auth::open(settings).unwrap();
        Node { settings, auth, hooks, runtime, is_open: Arc::default() }
    }

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_node_answers_while_it_loads_and_stops_when_asked() {
        let settings = settings();
        let (sender, receiver) = mpsc::channel();
        let mut listening = None;
        let open = |boot: &Boot<'_>| {
            listening = Some(boot.address);
            let health = get(boot.address, "/health");
            assert!(health.starts_with("HTTP/1.1 503") && health.contains("settling"), "{health}");
            let metrics = get(boot.address, "/metrics/prometheus");
            assert!(metrics.contains("queen_uptime_seconds"), "{metrics}");
            Ok(FakeBroker(sender))
        };
        node(&settings).run(open, async {}).unwrap();
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["stopping", "stopped"]);
        assert!(TcpStream::connect(listening.unwrap()).is_err());
    }

    #[test]
    fn a_refused_start_is_its_reason() {
        let settings = settings();
        let open = |_: &Boot<'_>| Err::<FakeBroker, _>(anyhow::anyhow!("damaged record at byte 7"));
        let error = node(&settings).run(open, async {}).unwrap_err();
        assert_eq!(error.to_string(), "damaged record at byte 7");
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut settings = settings();
        settings.port = taken.local_addr().unwrap().port().into();
        let open = |_: &Boot<'_>| -> anyhow::Result<FakeBroker> { panic!("it never opens") };
        let error = node(&settings).run(open, async {}).unwrap_err();
        assert!(error.to_string().contains("PORT="), "{error}");
    }
}
