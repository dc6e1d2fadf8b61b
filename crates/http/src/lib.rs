//! The JSON API: routes, parsing, rendering, and the mapping of refusals to status codes.
//!
//! ```text
//!   server (accept, limits, stop) -> conn (head and idle deadlines) -> hyper
//!        -> app (route, auth, tenant, origin check, catch) -> routes/* -> Api
//! ```
//!
//! The routes stand on hyper itself: the paths are few and fixed, and a router above it costs a third of
//! the rate of small requests. Nothing here reads the environment, the disk or the log: the broker is
//! [`queen_broker::api::Api`], the settings are [`AppOptions`] and [`ServeOptions`].
//!
//! Invariants:
//! - H1: a write is answered with a success status only after the broker's answer.
//! - H2: nothing a client sends can panic, and no buffer grows beyond a stated limit.
//! - H3: a payload is copied byte for byte, in and out; it is never parsed into a tree.
//! - H4: the text of every 503 contains the word "timeout": a released client polls on only then.
//! - H5: the body of a request is not read before its caller was let through to the route.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod fuzzing;
pub mod time;

mod answer;
mod app;
mod auth;
mod binary;
mod body;
mod budget;
mod catch;
mod conn;
mod error;
mod forward;
mod gate;
mod json;
mod openapi;
mod options;
mod origin;
mod query;
mod read;
mod routes;
mod server;
mod stats;
mod tenancy;

pub use app::App;
pub use auth::{
    Accepted, Algorithm, AuthError, AuthOptions, Authenticator, Denied, Identity, JwksOptions,
    Keeper, Role, RoleNames, Roles, UnknownAlgorithm,
};
pub use gate::Gate;
pub use openapi::{document_text as api_document, markdown as api_markdown};
pub use options::{AppOptions, ServeOptions, Source, SubscribeDefault};
pub use server::serve;
pub use stats::HttpStats;
