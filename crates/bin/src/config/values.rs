//! How each kind of value is read from an operator's text, and how it is shown.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::Ipv6Addr;
use std::num::IntErrorKind;

use queen_http::Accepted;
use queen_raft::Member;
use tracing_subscriber::EnvFilter;

/// A value of a setting.
pub(crate) trait Parse: Sized + fmt::Display {
    /// What it takes, for the reference page; empty for a number, whose range says it.
    const ACCEPTS: &'static str;
    /// Whether an empty text is a value; otherwise it is the default.
    const TAKES_EMPTY: bool = false;

    /// Reads the text; the error says what is wrong with it, without the variable's name.
    fn parse(text: &str, range: (u64, u64)) -> Result<Self, String>;
}

impl Parse for u64 {
    const ACCEPTS: &'static str = "";

    fn parse(text: &str, (min, max): (u64, u64)) -> Result<Self, String> {
        let value = match text.trim().parse::<Self>() {
            Ok(value) => value,
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => Self::MAX,
            Err(_) => return Err("is not a whole number".to_owned()),
        };
        // A percentage beyond its range is a mistake, not a wish for the nearest one.
        if (min, max) == (1, 100) && !(min..=max).contains(&value) {
            return Err("is not a percentage from 1 to 100".to_owned());
        }
        Ok(value.clamp(min, max))
    }
}

impl Parse for bool {
    const ACCEPTS: &'static str = "`true` `false`, `1` `0`, `yes` `no`, `on` `off`";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err("is neither true, 1, yes, on nor false, 0, no, off".to_owned()),
        }
    }
}

impl Parse for String {
    const ACCEPTS: &'static str = "text";
    const TAKES_EMPTY: bool = true;

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

macro_rules! shown {
    ($($name:ident),*) => { $(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )* };
}

shown!(Host, ServerId, Threads, Shards, Filter, Algorithm);

/// A host name or address without a port; an IPv6 address without its brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host(pub(crate) String);

impl Parse for Host {
    const ACCEPTS: &'static str = "host";
    const TAKES_EMPTY: bool = true;

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        let text = text.trim();
        let bracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        match bracketed {
            Some(address) if address.parse::<Ipv6Addr>().is_ok() => Ok(Self(address.to_owned())),
            Some(_) => Err("is not an IPv6 address".to_owned()),
            None if text.is_empty() => Err("is empty: name a host".to_owned()),
            None if text.contains(':') => {
                Err("must be a host without a port; an IPv6 address needs brackets".to_owned())
            }
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// A name for this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerId(pub(crate) String);

impl Parse for ServerId {
    const ACCEPTS: &'static str = "text";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        if text == "random" {
            // The standard library seeds each process's hash maps at random.
            return Ok(Self(format!("queen-{:016x}", RandomState::new().hash_one(0))));
        }
        Ok(Self(text.to_owned()))
    }
}

/// A share in percent, or the node's own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent(pub(crate) Option<u32>);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("auto"),
            Some(percent) => fmt::Display::fmt(&percent, f),
        }
    }
}

impl Parse for Percent {
    const ACCEPTS: &'static str = "`auto` or a percentage from 0 to 100";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self(None));
        }
        match text.parse::<u32>() {
            Ok(percent) if percent <= 100 => Ok(Self(Some(percent))),
            _ => Err("is neither auto nor a percentage from 0 to 100".to_owned()),
        }
    }
}

/// A number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threads(pub(crate) u64);

impl Parse for Threads {
    const ACCEPTS: &'static str = "`auto` or a number";

    fn parse(text: &str, range: (u64, u64)) -> Result<Self, String> {
        if text.trim().eq_ignore_ascii_case("auto") {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            return Ok(Self(u64::try_from(cores / 2).unwrap_or(1).max(1)));
        }
        u64::parse(text, range).map(Self)
    }
}

/// A number of shared logs; 0 is one log per queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shards(pub(crate) u64);

/// Few enough that a group of entries syncs few files, enough that they sync at the same time.
const SHARDS_AUTO: u64 = 4;

impl Parse for Shards {
    const ACCEPTS: &'static str = "`auto` or a number up to 4096";

    fn parse(text: &str, range: (u64, u64)) -> Result<Self, String> {
        if text.trim().eq_ignore_ascii_case("auto") {
            return Ok(Self(SHARDS_AUTO));
        }
        u64::parse(text, range).map(Self)
    }
}

/// A filter of log events, known to be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter(pub(crate) String);

impl Parse for Filter {
    const ACCEPTS: &'static str = "`error` `warn` `info` `debug` `trace`, or `target=level,…`";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        // A bare word that is no level would be taken for a target, and silence everything else.
        let is_level = |word: &str| word.parse::<tracing::level_filters::LevelFilter>().is_ok();
        let mut words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        if let Some(word) = words.find(|word| !word.contains(['=', '[', ':']) && !is_level(word)) {
            return Err(format!("is not a log filter: {word:?} is no level"));
        }
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!("is not a log filter: {error}")),
        }
    }
}

/// How tokens are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Algorithm(pub(crate) Accepted);

impl Parse for Algorithm {
    const ACCEPTS: &'static str = "`HS256` `HS384` `HS512` `RS256` `RS384` `RS512` `EdDSA` `auto`";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: queen_http::UnknownAlgorithm| error.to_string())
    }
}

/// How entries are made durable and agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replicator {
    /// One node alone.
    Local,
    /// A member of a cluster.
    Openraft,
}

impl Parse for Replicator {
    const ACCEPTS: &'static str = "`local` `openraft` (also `raft`)";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        match text.trim() {
            "local" => Ok(Self::Local),
            "openraft" | "raft" => Ok(Self::Openraft),
            _ => Err("is no replicator; there are local and openraft".to_owned()),
        }
    }
}

impl fmt::Display for Replicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Openraft => "openraft",
        })
    }
}

/// A node's number; `ordinal` is the number at the end of `HOSTNAME`, plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeId {
    Number(u64),
    Ordinal,
}

impl NodeId {
    /// The number on a host of this name.
    pub(crate) fn on(self, host: Option<&str>) -> Result<u64, String> {
        let Self::Ordinal = self else {
            let Self::Number(number) = self else { unreachable!("the other of two") };
            return Ok(number);
        };
        let host = host.unwrap_or_default();
        let digits = host.rsplit(|letter: char| !letter.is_ascii_digit()).next();
        let number = digits.and_then(|digits| digits.parse::<u64>().ok());
        number.and_then(|number| number.checked_add(1)).ok_or_else(|| {
            format!("is ordinal, but HOSTNAME={host:?} does not end in a number, as queen-0 does")
        })
    }
}

impl Parse for NodeId {
    const ACCEPTS: &'static str = "a number from 1, or `ordinal`";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        match text.trim() {
            "ordinal" => Ok(Self::Ordinal),
            text => match text.parse() {
                Ok(number) if number > 0 => Ok(Self::Number(number)),
                _ => Err("is no number from 1, and not ordinal".to_owned()),
            },
        }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Ordinal => f.write_str("ordinal"),
        }
    }
}

/// This node's number, said once more on purpose; or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnNumber(pub(crate) Option<u64>);

impl Parse for OwnNumber {
    const ACCEPTS: &'static str = "this node's own number; empty for no";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        match (text.trim(), text.trim().parse()) {
            ("", _) => Ok(Self(None)),
            (_, Ok(number)) if number > 0 => Ok(Self(Some(number))),
            _ => Err("is no node's number".to_owned()),
        }
    }
}

impl fmt::Display for OwnNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |number| number.fmt(f))
    }
}

/// The voters of a new cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peers(pub(crate) BTreeMap<u64, Member>);

impl Parse for Peers {
    const ACCEPTS: &'static str = "`id=raft-address/http-address`, with commas";

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        let mut peers = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let form = || format!("has {part:?}, which is not id=host:port/host:port");
            let (id, addresses) = part.split_once('=').ok_or_else(form)?;
            let (raft, http) = addresses.split_once('/').ok_or_else(form)?;
            let id = id.trim().parse::<u64>().ok().filter(|id| *id > 0).ok_or_else(form)?;
            let member = Member::at(raft.trim(), http.trim());
            if !is_address(&member.raft) || !is_address(&member.http) {
                return Err(form());
            }
            if peers.insert(id, member).is_some() {
                return Err(format!("names node {id} twice"));
            }
        }
        Ok(Self(peers))
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (id, member)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{id}={member}")?;
        }
        Ok(())
    }
}

/// Whether a text is `host:port`.
pub(crate) fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// The text, for the one who needs it; `None` when it is unset or empty.
    pub(crate) fn text(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(&*self.0)
    }
}

impl Parse for Secret {
    const ACCEPTS: &'static str = "text";
    // Empty is unset; blanks alone are a mistake that must not pass for that.
    const TAKES_EMPTY: bool = true;

    fn parse(text: &str, _: (u64, u64)) -> Result<Self, String> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.chars().count() {
            0 => f.write_str("<unset>"),
            count => write!(f, "<set:{count} chars>"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
