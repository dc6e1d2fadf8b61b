//! The one table of settings: names, defaults, ranges, meaning; and the struct that the program works with.
//!
//! Only this module reads the environment. A value is parsed by its field's type ([`values`]); a default is
//! written as an operator would write it and parsed the same way. Unset and, except for texts, empty mean the
//! default. A number outside its range is moved to the nearer end; a value that does not parse stops the start.

pub(crate) mod show;
mod source;
mod values;

pub(crate) use source::Environment;
pub(crate) use values::{
    Algorithm, Filter, Host, NodeId, OwnNumber, Peers, Percent, Replicator, Secret, ServerId,
    Shards, Threads, is_address,
};

use std::net::SocketAddr;

use anyhow::{Context, anyhow, bail};
use queen_broker::cipher::EncryptionKey;
use values::Parse;

use crate::auth;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// The line of the boot log that shows it.
    pub(crate) area: &'static str,
    /// The first that is set counts.
    pub(crate) names: &'static [&'static str],
    pub(crate) default: &'static str,
    /// Range of a number; everything for the rest.
    pub(crate) range: (u64, u64),
    /// What it takes, when that is not a range.
    pub(crate) accepts: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) meaning: &'static str,
}

/// The range of a value that is no number.
const ANY: (u64, u64) = (0, u64::MAX);

macro_rules! settings {
    ($($area:literal { $(
        $field:ident: $type:ty = $names:expr, $default:literal, $range:expr, $unit:literal,
        $meaning:literal;
    )* })*) => {
        /// Everything an operator chose, checked.
        #[derive(Clone, Debug)]
        pub(crate) struct Settings { $($( #[doc = $meaning] pub(crate) $field: $type, )*)* }

        /// All rows, area by area.
        pub(crate) const TABLE: &[Setting] = &[ $($( Setting {
            area: $area,
            names: &$names,
            default: $default,
            range: $range,
            accepts: <$type as Parse>::ACCEPTS,
            unit: $unit,
            meaning: $meaning,
        }, )*)* ];

        impl Settings {
            fn parse(environment: &Environment) -> anyhow::Result<Self> {
                let mut rows = TABLE.iter();
                Ok(Self { $($( $field: environment.value(rows.next())?, )*)* })
            }

            /// The effective values as shown, in the table's order.
            pub(crate) fn shown(&self) -> Vec<String> {
                vec![ $($( self.$field.to_string(), )*)* ]
            }
        }
    };
}

settings! {
    "server" {
        port: u64 = ["PORT"], "6632", (0, 65_535), "", "HTTP port; 0 takes a free one";
        bind_addr: Host = ["QUEEN_BIND_ADDR"], "0.0.0.0", ANY, "",
            "Host or address to listen on, without a port; an IPv6 address in brackets";
        max_body_bytes: u64 = ["QUEEN_MAX_BODY_BYTES"], "67108864", (1024, 1 << 40), "bytes",
            "Largest request body; a larger one is answered 413";
        server_id: ServerId = ["QUEEN_SERVER_ID", "HOSTNAME"], "random", ANY, "",
            "The node's name in logs and in the dashboard";
        statement_timeout_ms: u64 = ["QUEEN_STMT_TIMEOUT_MS"], "30000", (1, 60_000), "ms",
            "Deadline of acks, lease extensions, configuration and deletes";
        default_timeout_ms: u64 = ["DEFAULT_TIMEOUT", "POP_DEFAULT_TIMEOUT_MS"], "30000",
            (1, 60_000), "ms", "Wait of a pop that names none, and deadline of a push";
        subscription_mode: String = ["DEFAULT_SUBSCRIPTION_MODE"], "new", ANY, "",
            "Where a new consumer group starts when its pop does not say: `new`, `new-only`, `new_only` and `newonly` mean from now, anything else from the oldest message";
        http_threads: Threads = ["QUEEN_HTTP_THREADS"], "auto", (1, 1024), "threads",
            "Threads that serve HTTP; auto is half of the cores, and 1 on one or two";
    }
    "logging" {
        log_filter: Filter = ["RUST_LOG", "LOG_LEVEL"], "info", ANY, "",
            "What is logged, as level or target=level list";
        log_json: bool = ["QUEEN_LOG_JSON"], "false", ANY, "", "One JSON object per line";
    }
    "auth" {
        jwt_enabled: bool = ["JWT_ENABLED"], "false", ANY, "",
            "Ask every caller for a token; false lets everybody who reaches the port do everything";
        jwt_algorithm: Algorithm = ["JWT_ALGORITHM"], "HS256", ANY, "",
            "How tokens are signed; one of RS256, RS384 and RS512 accepts all three, auto accepts whatever a key is set for";
        jwt_secret: Secret = ["JWT_SECRET"], "", ANY, "", "The secret of HS256, HS384 and HS512";
        jwt_public_key: Secret = ["JWT_PUBLIC_KEY"], "", ANY, "",
            "An RSA or Ed25519 public key as PEM; line breaks may be written as `\\n`";
        jwt_jwks_url: String = ["JWT_JWKS_URL"], "", ANY, "",
            "Where an identity provider publishes its public keys, http or https";
        jwt_jwks_refresh_s: u64 = ["JWT_JWKS_REFRESH_INTERVAL"], "3600", (1, 31_536_000), "s",
            "How often published keys are read again; an unknown key has them read at once, at most every 5 s";
        jwt_jwks_timeout_ms: u64 = ["JWT_JWKS_TIMEOUT_MS"], "5000", (1, 60_000), "ms",
            "How long reading published keys may take";
        jwt_issuer: String = ["JWT_ISSUER"], "", ANY, "", "The only accepted `iss`; empty accepts any";
        jwt_audience: String = ["JWT_AUDIENCE"], "", ANY, "",
            "What `aud` must be or hold; empty accepts any";
        jwt_clock_skew_s: u64 = ["JWT_CLOCK_SKEW"], "30", (0, 86_400), "s",
            "How far clocks may be apart when `exp`, `nbf` and `iat` are checked";
        jwt_require_exp: bool = ["JWT_REQUIRE_EXP"], "false", ANY, "",
            "Refuse tokens without `exp`, which never end";
        jwt_skip_paths: String = ["JWT_SKIP_PATHS"], "/health,/metrics/prometheus,/metrics,/", ANY, "",
            "Paths that need no token, with commas; an entry longer than `/` that ends in `/` stands for everything below it";
        jwt_roles_claim: String = ["JWT_ROLES_CLAIM"], "role", ANY, "",
            "The claim with one role as a text; empty for none";
        jwt_roles_array_claim: String = ["JWT_ROLES_ARRAY_CLAIM"], "roles", ANY, "",
            "The claim with a list of roles; empty for none";
        jwt_role_admin: String = ["JWT_ROLE_ADMIN"], "admin", ANY, "",
            "Name of the role that may do everything; empty gives it to nobody, as with the other roles";
        jwt_role_read_write: String = ["JWT_ROLE_READ_WRITE"], "read-write", ANY, "",
            "Name of the role that may produce, consume and read";
        jwt_role_read_only: String = ["JWT_ROLE_READ_ONLY"], "read-only", ANY, "",
            "Name of the role that may read";
        jwt_role_write_only: String = ["JWT_ROLE_WRITE_ONLY"], "write-only", ANY, "",
            "Name of the role that may produce";
        tenancy_header: bool = ["QUEEN_TENANCY_HEADER"], "false", ANY, "",
            "Take the tenant from the header `x-queen-tenant`; needs `QUEEN_KV_TRUSTED_PROXY=true`";
        trusted_proxy: bool = ["QUEEN_KV_TRUSTED_PROXY"], "false", ANY, "",
            "Only a proxy that checks or sets `x-queen-tenant` can reach this port";
    }
    "security" {
        encryption_key: Secret = ["QUEEN_ENCRYPTION_KEY"], "", ANY, "",
            "Key of 64 hex digits that encrypts the payloads of queues with `encryptionEnabled`; the same for the directory's whole life";
    }
    "storage" {
        dir: String = ["QUEEN_RAFT_DIR"], "/var/lib/queen/raft", ANY, "", "Data directory; made if absent";
        segment_bytes: u64 = ["QUEEN_RAFT_SEGMENT_BYTES"], "67108864", (65_536, 1 << 40), "bytes",
            "Size at which a queue-log file rolls";
        zstd_level: u64 = ["QUEEN_RAFT_QLOG_ZSTD_LEVEL"], "1", (0, 22), "",
            "Compression of stored payloads; 0 turns it off";
        shards: Shards = ["QUEEN_QLOG_SHARDS"], "0", (0, 4096), "logs",
            "Shared logs that all queues use together; 0 is one log per queue, auto is 4; fixed when the directory is made";
        lanes: u64 = ["QUEEN_QLOG_LANES"], "1", (1, 64), "lanes",
            "Lanes of one queue's log; fixed when the directory is made";
        durable_every_ms: u64 = ["QUEEN_RAFT_DURABLE_EVERY_MS"], "1000", (1, 3_600_000), "ms",
            "How often the store is checkpointed";
        durable_every_bytes: u64 = ["QUEEN_RAFT_DURABLE_EVERY_BYTES"], "268435456",
            (1 << 20, 1 << 40), "bytes", "Checkpoint earlier after this many bytes of log";
        prealloc_kb: u64 = ["QUEEN_RAFT_QLOG_PREALLOC_KB"], "1024", (0, 1 << 20), "KiB",
            "Zeros written ahead of a busy log's end; 0 turns it off";
        prealloc_min_syncs: u64 = ["QUEEN_RAFT_QLOG_PREALLOC_MIN_SYNCS"], "64", (0, 1 << 30),
            "syncs", "Syncs a log must have had before zeros are written ahead";
        precreate: bool = ["QUEEN_QLOG_PRECREATE"], "true", ANY, "",
            "Make the next log file before the active one is full";
        fsync_threads: u64 = ["QUEEN_QLOG_FSYNC_THREADS"], "32", (0, 1024), "threads",
            "Threads that sync logs at the same time; 0 syncs one after the other";
        fd_cache: u64 = ["QUEEN_RAFT_QLOG_FD_CACHE"], "256", (1, 1 << 20), "files",
            "Log files kept open, for reading and writing; at least as many as logs that one moment writes to";
        drop_behind_mb: u64 = ["QUEEN_QLOG_DROP_BEHIND_MB"], "256", (0, 1 << 20), "MiB",
            "Written log kept in the page cache behind a log's end; 0 keeps all";
        disk_high_pct: u64 = ["QUEEN_RAFT_DISK_HIGH_PCT"], "85", (1, 100), "%",
            "How full the data directory's volume may be before writes that grow storage are answered 507; 100 only when it is full";
        disk_low_pct: u64 = ["QUEEN_RAFT_DISK_LOW_PCT"], "80", (1, 100), "%",
            "Below this they are taken again; at most `QUEEN_RAFT_DISK_HIGH_PCT`";
        disk_check_ms: u64 = ["QUEEN_RAFT_DISK_CHECK_MS"], "100", (10, 60_000), "ms",
            "How often the volume is looked at";
        scrub_kb_per_s: u64 = ["QUEEN_QLOG_SCRUB_KB_PER_S"], "4096", (0, 1 << 30), "KiB/s",
            "How fast sealed logs are read again to find damage; 0 turns it off";
        scrub_every_s: u64 = ["QUEEN_QLOG_SCRUB_EVERY_S"], "86400", (1, 31_536_000), "s",
            "From the start of a round over all sealed logs to the start of the next";
        store_scrub_rows_per_s: u64 = ["QUEEN_STORE_SCRUB_ROWS_PER_S"], "2000", (0, 1 << 30),
            "rows/s", "How fast the store is verified again, its file and then memory against it; 0 turns it off";
        store_scrub_every_s: u64 = ["QUEEN_STORE_SCRUB_EVERY_S"], "21600", (0, 31_536_000), "s",
            "From the end of a round over the store, or the start, to the start of the next; 0 turns it off";
        store_verify: bool = ["QUEEN_STORE_VERIFY"], "false", ANY, "",
            "Compare memory with the store's file once more before serving; a start always verifies the file";
        compact_min_dead_pct: Percent = ["QUEEN_QLOG_COMPACT_MIN_DEAD_PCT"], "auto", (0, 100), "%",
            "Share of a log file's message bytes that must be dead before its live messages are copied to a new file; auto is the first dead message in a queue's own log and 50 in a shared one";
        seal_age_s: u64 = ["QUEEN_QLOG_SEAL_AGE_S"], "600", (1, 31_536_000), "s",
            "Age of a log's active file from which it is sealed early when it holds a dead message, only entry records, or an eighth of a file";
    }
    "cluster" {
        replicator: Replicator = ["QUEEN_RAFT_REPLICATOR"], "local", ANY, "",
            "Whether the node is alone or a member of a cluster; a directory stays with the one that made it";
        node_id: NodeId = ["QUEEN_RAFT_NODE_ID"], "1", ANY, "",
            "This node's number in its cluster; ordinal is the number at the end of `HOSTNAME`, plus one";
        peers: Peers = ["QUEEN_RAFT_PEERS"], "", ANY, "",
            "Every voter of a new cluster, the same text on each; later the membership in the log counts";
        raft_listen: String = ["QUEEN_RAFT_LISTEN"], "", ANY, "",
            "Address that other members reach; empty is `0.0.0.0` and the port of the node's own raft address";
        raft_token: Secret = ["QUEEN_RAFT_TOKEN"], "", ANY, "",
            "Shared secret of every call between members; without one anybody who reaches the port may write the log";
        raft_join: bool = ["QUEEN_RAFT_JOIN"], "false", ANY, "",
            "An empty node founds no cluster: it waits to be added to one";
        force_recover: OwnNumber = ["QUEEN_RAFT_FORCE_RECOVER"], "", ANY, "",
            "This node's own number: it goes on alone, since a majority of the disks is lost; see docs/cluster.md";
        heartbeat_ms: u64 = ["QUEEN_RAFT_HEARTBEAT_MS"], "0", (0, 60_000), "ms",
            "Time between two heartbeats of a leader; 0 is 100, and 50 for a single voter";
        election_ms: u64 = ["QUEEN_RAFT_ELECTION_MS"], "0", (0, 600_000), "ms",
            "Least silence of the leader after which a member elects, twice that is the most; 0 is 1000, and 150 for a single voter";
        promote_max_lag: u64 = ["QUEEN_RAFT_PROMOTE_MAX_LAG"], "1000", (0, 1 << 40), "entries",
            "How far behind a learner may be to become a voter";
        log_cache_mb: u64 = ["QUEEN_RAFT_LOG_CACHE_MB"], "512", (1, 1 << 20), "MiB",
            "Entries kept in memory for members that are behind; older ones are read from the logs";
        log_keep: u64 = ["QUEEN_RAFT_LOG_KEEP"], "4096", (0, 1 << 40), "entries",
            "Entries that are kept although every member that answers has them; a member that lacks older ones is sent a snapshot";
        purge_hold_s: u64 = ["QUEEN_RAFT_PURGE_HOLD_S"], "600", (1, 31_536_000), "s",
            "How long a member that does not answer keeps the others from giving back the space of what it lacks";
    }
    "planner" {
        batch_max_cmds: u64 = ["QUEEN_RAFT_BATCH_MAX_CMDS"], "4096", (1, 1 << 20), "commands",
            "Commands planned in one cycle";
        batch_max_bytes: u64 = ["QUEEN_RAFT_BATCH_MAX_BYTES"], "4194304", (4096, 1 << 30), "bytes",
            "Bytes planned in one cycle";
        entry_max_bytes: u64 = ["QUEEN_RAFT_ENTRY_MAX_BYTES"], "100663296", (65_536, 1 << 30),
            "bytes", "Largest planned command; a larger one is refused";
        command_queue_depth: u64 = ["QUEEN_RAFT_COMMAND_QUEUE_DEPTH"], "16384", (1, 1 << 24),
            "commands", "Commands that may wait to be planned";
        admit_max_mb: u64 = ["QUEEN_RAFT_ADMIT_MAX_MB"], "128", (0, 1 << 20), "MiB",
            "Bytes of writes that may wait; 0 turns the limit off";
        admit_hold_ms: u64 = ["QUEEN_RAFT_ADMIT_HOLD_MS"], "15000", (0, 60_000), "ms",
            "How long a write waits for room before it is answered 429";
        txn_window_min_s: u64 = ["QUEEN_RAFT_TXN_WINDOW_MIN_S"], "900", (0, 31_536_000), "s",
            "Shortest time for which a transactionId is known, whatever the queue's window";
        answer_at_commit: bool = ["QUEEN_RAFT_ANSWER_AT_COMMIT"], "true", ANY, "",
            "Accepted and ignored: an answer always waits for its entry to be applied here";
    }
    "retention" {
        retention_scan: bool = ["QUEEN_RAFT_RETENTION_SCAN"], "true", ANY, "",
            "Look for messages that are too old and partitions that nobody uses; false removes nothing";
        retention_interval_ms: u64 = ["RETENTION_INTERVAL"], "5000", (1, 86_400_000), "ms",
            "Least time between the starts of two walks over all partitions";
        retention_batch_size: u64 = ["RETENTION_BATCH_SIZE"], "1000", (1, 1 << 20), "pushes",
            "Pushes that one step moves a partition by; one with more due is looked at again 40 ms later";
        retention_scan_per_s: u64 = ["QUEEN_RAFT_RETENTION_SCAN_PER_S"], "50000", (1, 1 << 30),
            "partitions/s", "Partitions walked per second";
        cleanup_enabled: bool = ["QUEEN_PARTITION_CLEANUP_ENABLED"], "true", ANY, "",
            "Remove partitions that are empty and that nobody used for `PARTITION_CLEANUP_DAYS`";
        cleanup_days: u64 = ["PARTITION_CLEANUP_DAYS"], "30", (0, 36_500), "days",
            "Age at which an empty partition that nobody uses is removed; 0 is at once";
    }
    "consumption" {
        idle_unload_s: u64 = ["QUEEN_CONSUME_IDLE_UNLOAD_S"], "600", (0, 31_536_000), "s",
            "A consumer group that nobody used for this long leaves memory; 0 never";
        pop_reply_margin_ms: u64 = ["QUEEN_RAFT_POP_REPLY_MARGIN_MS"], "50", (0, 60_000), "ms",
            "A pop this close to its deadline is answered empty and claims nothing";
        checkpoint_ms: u64 = ["QUEEN_CONSUME_CHECKPOINT_MS"], "5", (0, 60_000), "ms",
            "Accepted and ignored: cursors are durable with each answer";
    }
    "metrics" {
        metrics: bool = ["QUEEN_RAFT_METRICS"], "true", ANY, "",
            "Timing series of the write path in /metrics/prometheus";
    }
}

impl Settings {
    /// Reads and checks all settings.
    ///
    /// # Errors
    /// The first value that does not parse, by name; or a combination that must not run.
    pub(crate) fn read(environment: &Environment) -> anyhow::Result<Self> {
        let settings = Self::parse(environment)?;
        settings.check(environment)?;
        Ok(settings)
    }

    /// The key that payloads are encrypted with.
    ///
    /// # Errors
    /// What is set is no key.
    pub(crate) fn encryption_key(&self) -> anyhow::Result<Option<EncryptionKey>> {
        let text = self.encryption_key.text();
        let key = text.map(EncryptionKey::parse).transpose();
        // The text is not quoted: it is nearly a key.
        key.map_err(|error| anyhow!("QUEEN_ENCRYPTION_KEY {error}"))
    }

    /// Refuses to run without a protection or a cluster that was asked for.
    fn check(&self, environment: &Environment) -> anyhow::Result<()> {
        if self.jwt_enabled {
            auth::options(self).check().context("JWT_ENABLED is true")?;
        }
        if self.tenancy_header && !self.trusted_proxy {
            bail!(
                "QUEEN_TENANCY_HEADER is true without QUEEN_KV_TRUSTED_PROXY=true: anybody could name any tenant"
            );
        }
        self.encryption_key()?;
        if environment.is_set("QUEEN_TEST_FAULTS") {
            // Ignored, it would make a test of faults pass without any.
            bail!("QUEEN_TEST_FAULTS is set, but this build injects no faults");
        }
        self.check_cluster(environment)?;
        if self.dir.is_empty() {
            bail!("QUEEN_RAFT_DIR is empty: name the data directory");
        }
        Ok(())
    }

    /// This node's number.
    ///
    /// # Errors
    /// The host's name does not say it.
    pub(crate) fn node_number(&self) -> anyhow::Result<u64> {
        let host = std::env::var("HOSTNAME").ok();
        self.node_id.on(host.as_deref()).map_err(|reason| anyhow!("QUEEN_RAFT_NODE_ID {reason}"))
    }

    /// Refuses half a cluster.
    fn check_cluster(&self, environment: &Environment) -> anyhow::Result<()> {
        if self.replicator == Replicator::Local {
            if environment.is_filled("QUEEN_RAFT_PEERS") {
                bail!("QUEEN_RAFT_PEERS is set without QUEEN_RAFT_REPLICATOR=openraft");
            }
            return Ok(());
        }
        let node = self.node_number()?;
        if !self.peers.0.is_empty() && !self.peers.0.contains_key(&node) {
            bail!("QUEEN_RAFT_PEERS does not name this node, {node} (QUEEN_RAFT_NODE_ID)");
        }
        self.raft_address()?;
        Ok(())
    }

    /// Where this node listens for other members; `None` without a network.
    ///
    /// # Errors
    /// The text is no address.
    pub(crate) fn raft_address(&self) -> anyhow::Result<Option<SocketAddr>> {
        let own = self.peers.0.get(&self.node_number()?);
        let text = match (&*self.raft_listen, own) {
            ("", None) => return Ok(None),
            ("", Some(own)) => {
                let port = own.raft.rsplit_once(':').map_or("0", |(_, port)| port);
                format!("0.0.0.0:{port}")
            }
            (text, _) => text.to_owned(),
        };
        let address = text.parse().with_context(|| {
            format!("QUEEN_RAFT_LISTEN={text} is no address, such as 0.0.0.0:7400")
        })?;
        Ok(Some(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = Environment::new(pairs);
        Settings::read(&environment).map_err(|error| format!("{error:#}"))
    }

    fn refused(name: &str, value: &str) {
        let error = read(&[(name, value)]).unwrap_err();
        assert!(error.contains(name), "{name}={value}: {error}");
    }

    #[test]
    fn nothing_set_is_a_valid_start() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.port, settings.max_body_bytes), (6632, 64 << 20));
        assert_eq!(settings.dir, "/var/lib/queen/raft");
        assert_eq!(settings.shards.0, 0);
        assert_eq!(settings.shown().len(), TABLE.len());
    }

    #[test]
    fn every_spelling_of_a_boolean() {
        for text in ["true", "TRUE", "1", "yes", "Yes", "on", " on "] {
            assert!(read(&[("QUEEN_LOG_JSON", text)]).unwrap().log_json, "{text}");
        }
        for text in ["false", "False", "0", "no", "OFF", " off\t"] {
            assert!(!read(&[("QUEEN_QLOG_PRECREATE", text)]).unwrap().precreate, "{text}");
        }
        assert!(read(&[("QUEEN_QLOG_PRECREATE", "")]).unwrap().precreate);
        let error = read(&[("QUEEN_LOG_JSON", "maybe")]).unwrap_err();
        assert!(error.contains("QUEEN_LOG_JSON") && error.contains("\"maybe\""), "{error}");
    }

    #[test]
    fn raw_texts_are_not_typed_before_they_are_parsed() {
        let settings = read(&[("QUEEN_SERVER_ID", "0123"), ("QUEEN_RAFT_DIR", "[1]")]).unwrap();
        assert_eq!((&*settings.server_id.0, &*settings.dir), ("0123", "[1]"));
        let settings = read(&[("QUEEN_SERVER_ID", "true"), ("QUEEN_RAFT_DIR", "\"a\"")]).unwrap();
        assert_eq!((&*settings.server_id.0, &*settings.dir), ("true", "\"a\""));
    }

    #[test]
    fn bad_values_name_their_variable() {
        for (name, value) in [
            ("PORT", "http"),
            ("PORT", "-1"),
            ("QUEEN_MAX_BODY_BYTES", "64M"),
            ("QUEEN_BIND_ADDR", ""),
            ("QUEEN_BIND_ADDR", "0.0.0.0:6632"),
            ("QUEEN_BIND_ADDR", "[::1]:6632"),
            ("QUEEN_BIND_ADDR", "::1"),
            ("QUEEN_RAFT_DIR", ""),
            ("QUEEN_QLOG_SHARDS", "many"),
            ("QUEEN_HTTP_THREADS", "few"),
            ("QUEEN_RAFT_REPLICATOR", "paxos"),
            ("LOG_LEVEL", "queen=loud"),
            ("LOG_LEVEL", "verbose"),
            ("RUST_LOG", "queen=loud"),
            ("JWT_ENABLED", "yes"),
            ("JWT_ENABLED", "maybe"),
            ("JWT_ALGORITHM", "none"),
            ("JWT_ALGORITHM", "ES256"),
            ("JWT_REQUIRE_EXP", "sometimes"),
            ("JWT_CLOCK_SKEW", "30s"),
            ("QUEEN_TENANCY_HEADER", "true"),
            ("QUEEN_KV_TRUSTED_PROXY", "nginx"),
            ("QUEEN_ENCRYPTION_KEY", "00"),
            ("QUEEN_RAFT_PEERS", "1=a:1"),
            ("QUEEN_TEST_FAULTS", "disk_full"),
            ("QUEEN_TEST_FAULTS", ""),
        ] {
            refused(name, value);
        }
    }

    #[test]
    fn a_member_needs_its_own_name_among_the_peers() {
        let peers = "1=a:7400/a:6632, 2=b:7400/b:6632,";
        let member = |id: &str, peers: &str, listen: &str| {
            read(&[
                ("QUEEN_RAFT_REPLICATOR", "openraft"),
                ("QUEEN_RAFT_NODE_ID", id),
                ("QUEEN_RAFT_PEERS", peers),
                ("QUEEN_RAFT_LISTEN", listen),
            ])
        };
        let settings = member("2", peers, "").unwrap();
        assert_eq!(settings.peers.to_string(), "1=a:7400/a:6632,2=b:7400/b:6632");
        assert_eq!(settings.raft_address().unwrap().unwrap().to_string(), "0.0.0.0:7400");
        assert!(member("1", "", "").unwrap().raft_address().unwrap().is_none());
        for (id, peers, listen, word) in [
            ("3", peers, "", "QUEEN_RAFT_PEERS does not name this node, 3"),
            ("0", peers, "", "QUEEN_RAFT_NODE_ID"),
            ("one", peers, "", "QUEEN_RAFT_NODE_ID"),
            ("1", "1=a:7400", "", "QUEEN_RAFT_PEERS"),
            ("1", "a:7400/a:6632", "", "QUEEN_RAFT_PEERS"),
            ("1", "1=a:7400/", "", "QUEEN_RAFT_PEERS"),
            ("1", "0=a:7400/a:6632", "", "QUEEN_RAFT_PEERS"),
            ("1", "1=a:7400/a:6632,1=b:7400/b:6632", "", "names node 1 twice"),
            ("1", peers, "here", "QUEEN_RAFT_LISTEN"),
        ] {
            let error = member(id, peers, listen).unwrap_err();
            assert!(error.contains(word), "{id} {peers} {listen}: {error}");
        }
    }

    #[test]
    fn an_ordinal_is_the_number_at_the_end_of_the_host() {
        assert_eq!(NodeId::Ordinal.on(Some("queen-0")), Ok(1));
        assert_eq!(NodeId::Ordinal.on(Some("queen-12")), Ok(13));
        assert_eq!(NodeId::Number(5).on(None), Ok(5));
        for host in [None, Some(""), Some("queen"), Some("queen-99999999999999999999")] {
            assert!(NodeId::Ordinal.on(host).is_err(), "{host:?}");
        }
    }

    #[test]
    fn numbers_are_moved_into_their_range() {
        let settings = read(&[("QUEEN_STMT_TIMEOUT_MS", "999999"), ("QUEEN_QLOG_LANES", "0")]);
        let settings = settings.unwrap();
        assert_eq!((settings.statement_timeout_ms, settings.lanes), (60_000, 1));
        assert_eq!(read(&[("PORT", " 80 ")]).unwrap().port, 80);
    }

    #[test]
    fn the_first_of_several_names_counts() {
        let both = [("POP_DEFAULT_TIMEOUT_MS", "2000"), ("DEFAULT_TIMEOUT", "1000")];
        assert_eq!(read(&both).unwrap().default_timeout_ms, 1000);
        assert_eq!(read(&both[..1]).unwrap().default_timeout_ms, 2000);
        let levels = [("LOG_LEVEL", "warn"), ("RUST_LOG", "debug")];
        assert_eq!(read(&levels).unwrap().log_filter.0, "debug");
        let levels = [("LOG_LEVEL", "warn"), ("RUST_LOG", "")];
        assert_eq!(read(&levels).unwrap().log_filter.0, "warn");
    }

    #[test]
    fn special_values() {
        assert_eq!(read(&[("QUEEN_QLOG_SHARDS", "auto")]).unwrap().shards.0, 4);
        assert_eq!(read(&[("QUEEN_QLOG_SHARDS", "9")]).unwrap().shards.0, 9);
        assert_eq!(read(&[("QUEEN_HTTP_THREADS", "3")]).unwrap().http_threads.0, 3);
        assert!(read(&[]).unwrap().http_threads.0 >= 1);
        assert_eq!(read(&[("QUEEN_BIND_ADDR", "[::1]")]).unwrap().bind_addr.0, "::1");
        assert_eq!(read(&[("HOSTNAME", "node-3")]).unwrap().server_id.0, "node-3");
    }

    #[test]
    fn an_encryption_key_is_64_hex_digits_or_nothing() {
        let key = "0123456789abcdefABCDEF0123456789".repeat(2);
        assert!(
            read(&[("QUEEN_ENCRYPTION_KEY", &key)]).unwrap().encryption_key().unwrap().is_some()
        );
        assert!(read(&[("QUEEN_ENCRYPTION_KEY", "")]).unwrap().encryption_key().unwrap().is_none());
        for bad in [" ", &key[1..], &format!("{key}\n"), &key.replace('a', "g"), &"é".repeat(32)] {
            refused("QUEEN_ENCRYPTION_KEY", bad);
        }
    }

    #[test]
    fn secrets_are_never_shown() {
        let error = read(&[("QUEEN_ENCRYPTION_KEY", "s3cr3t-key")]).unwrap_err();
        assert!(!error.contains("s3cr3t"), "{error}");
        let pairs = [("QUEEN_ENCRYPTION_KEY".to_owned(), "s3cr3t-key".to_owned())];
        let settings = Settings::parse(&Environment::new(pairs)).unwrap();
        let shown = show::table(&settings);
        assert!(!shown.contains("s3cr3t") && shown.contains("<set:10 chars>"), "{shown}");
        assert!(!format!("{settings:?}").contains("s3cr3t"));
        assert!(show::table(&read(&[]).unwrap()).contains("<unset>"));
    }
}
