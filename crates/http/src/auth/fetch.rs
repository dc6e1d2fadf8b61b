//! One GET of a small document: own connection, no redirect, a limit for time and for bytes.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::auth::AuthError;

/// Bytes of a document at most: thousands of keys.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes of an answer's head at most.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What a URL names.
#[derive(Clone, Debug)]
pub(super) struct Target {
    host: String,
    port: u16,
    is_tls: bool,
    /// As the header has it.
    authority: String,
    path: Uri,
}

impl Target {
    /// # Errors
    /// Why it is no URL that can be read; the text stands after the setting's name.
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url.trim().parse().map_err(|_| "is no URL")?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("is no http or https URL"),
        };
        let authority = uri.authority().ok_or("names no host")?.as_str().to_owned();
        if authority.contains('@') {
            return Err("holds a user name, which would stand in the log");
        }
        let host = uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err("names no host");
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = path.parse().map_err(|_| "is no URL")?;
        Ok(Self { host: host.to_owned(), port, is_tls, authority, path })
    }
}

/// Why a document did not come.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("no connection: {0}")]
    Connect(io::Error),
    #[error("no TLS: {0}")]
    Tls(io::Error),
    #[error("{0}")]
    Http(hyper::Error),
    #[error("answered {0}, and redirects are not followed")]
    Redirect(StatusCode),
    #[error("answered {0}")]
    Status(StatusCode),
    #[error("the document is larger than {BODY_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the document broke off: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("no whole answer within {} ms", .0.as_millis())]
    Slow(Duration),
}

/// Reads one URL, as often as it is asked to.
pub(super) struct Fetcher {
    target: Target,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
}

impl Fetcher {
    /// # Errors
    /// A URL that is none, or a system without root certificates for a URL that needs them.
    pub(super) fn new(url: &str, timeout: Duration) -> Result<Self, AuthError> {
        let target = Target::parse(url).map_err(AuthError::Url)?;
        let roots = if target.is_tls { system_roots()? } else { RootCertStore::empty() };
        Self::with_roots(target, roots, timeout)
    }

    fn with_roots(
        target: Target,
        roots: RootCertStore,
        timeout: Duration,
    ) -> Result<Self, AuthError> {
        if !target.is_tls {
            return Ok(Self { target, tls: None, timeout });
        }
        let name = ServerName::try_from(target.host.clone());
        let name = name.map_err(|_| AuthError::Url("names a host that is no name"))?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|_| AuthError::Url("needs a TLS version that this build has not"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Self { target, tls: Some((connector, name)), timeout })
    }

    /// The document.
    pub(super) async fn get(&self) -> Result<Bytes, FetchError> {
        let got = tokio::time::timeout(self.timeout, self.connect_and_get()).await;
        got.unwrap_or(Err(FetchError::Slow(self.timeout)))
    }

    async fn connect_and_get(&self) -> Result<Bytes, FetchError> {
        let stream = TcpStream::connect((&*self.target.host, self.target.port)).await;
        let stream = stream.map_err(FetchError::Connect)?;
        match &self.tls {
            None => self.exchange(stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await;
                self.exchange(stream.map_err(FetchError::Tls)?).await
            }
        }
    }

    async fn exchange<S>(&self, stream: S) -> Result<Bytes, FetchError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let (mut sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(FetchError::Http)?;
        let request = Request::get(self.target.path.clone())
            .header(HOST, &self.target.authority)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "queen")
            .body(Empty::<Bytes>::new());
        let exchange = async move {
            // All parts were checked when the target was made.
            let request = request.map_err(|error| FetchError::Body(error.into()))?;
            let answer = sender.send_request(request).await.map_err(FetchError::Http)?;
            match answer.status() {
                StatusCode::OK => {}
                status if status.is_redirection() => return Err(FetchError::Redirect(status)),
                status => return Err(FetchError::Status(status)),
            }
            let body = Limited::new(answer.into_body(), BODY_BYTES_MAX).collect().await;
            let body = body.map_err(|error| match error.downcast::<LengthLimitError>() {
                Ok(_) => FetchError::TooLarge,
                Err(error) => FetchError::Body(error),
            })?;
            Ok(body.to_bytes())
        };
        drive(connection, exchange).await
    }
}

/// Runs an exchange on its connection, whose own errors the exchange reports too.
async fn drive<T>(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<T, FetchError>>,
) -> Result<T, FetchError> {
    let (mut connection, mut exchange) = (pin!(connection), pin!(exchange));
    tokio::select! {
        done = &mut exchange => done,
        _ = &mut connection => exchange.await,
    }
}

/// What the operating system trusts.
fn system_roots() -> Result<RootCertStore, AuthError> {
    let mut roots = RootCertStore::empty();
    let loaded = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(loaded.certs);
    if added == 0 { Err(AuthError::NoRoots) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;
    use crate::auth::tests::{TLS_CERTIFICATE, TLS_KEY};

    #[test]
    fn urls() {
        let target = Target::parse(" https://issuer.example/keys?x=1 ").unwrap();
        assert_eq!((&*target.host, target.port, target.is_tls), ("issuer.example", 443, true));
        assert_eq!(target.path, "/keys?x=1");
        let target = Target::parse("http://[::1]:8080").unwrap();
        assert_eq!((&*target.host, target.port, target.is_tls), ("::1", 8080, false));
        assert_eq!((&*target.authority, target.path), ("[::1]:8080", Uri::from_static("/")));
        for url in ["", "keys", "/keys", "ftp://a/", "file:///etc/passwd", "http://", "http:///x"] {
            assert!(Target::parse(url).is_err(), "{url}");
        }
        assert!(Target::parse("https://user:word@host/").unwrap_err().contains("user name"));
    }

    fn acceptor() -> TlsAcceptor {
        let chain = vec![CertificateDer::from_pem_slice(TLS_CERTIFICATE.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(TLS_KEY.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// What a client that trusts `roots` gets from a server that calls itself `localhost`.
    async fn over_tls(roots: RootCertStore, host: &str) -> Result<Bytes, FetchError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{host}:{}/keys", listener.local_addr().unwrap().port());
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor().accept(stream).await else { return };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with("GET /keys HTTP/1.1\r\n"), "{head}");
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
            stream.flush().await.unwrap();
        };
        let target = Target::parse(&url).unwrap();
        let fetcher = Fetcher::with_roots(target, roots, Duration::from_secs(30)).unwrap();
        tokio::join!(fetcher.get(), serve).0
    }

    fn own_root() -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(TLS_CERTIFICATE.as_bytes()).unwrap()).unwrap();
        roots
    }

    #[tokio::test]
    async fn a_server_has_to_prove_its_name() {
        assert_eq!(over_tls(own_root(), "localhost").await.unwrap(), "{}");
        let other_name = over_tls(own_root(), "127.0.0.1").await;
        assert!(matches!(other_name, Err(FetchError::Tls(_))), "{other_name:?}");
        let unknown = over_tls(RootCertStore::empty(), "localhost").await;
        assert!(matches!(unknown, Err(FetchError::Tls(_))), "{unknown:?}");
    }
}
