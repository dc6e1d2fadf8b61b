//! How members reach each other: streams of bytes, over TCP or a simulated network.

use std::io;
use std::net::SocketAddr;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// A stream of bytes in both directions, in order, without loss until it breaks.
pub trait Link: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Link for T {}

/// Makes and takes links.
pub trait Network: Send + Sync {
    /// A link to whoever listens there.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Link>>>;

    /// Takes links that others make to this address.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listen>>>;
}

/// Takes links.
pub trait Listen: Send {
    /// The next link that somebody made.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Link>>>;
}

/// The real network.
pub(crate) struct Tcp;

impl Network for Tcp {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Link>>> {
        Box::pin(async move { boxed(TcpStream::connect(address).await?) })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listen>>> {
        Box::pin(async move {
            let listener: Box<dyn Listen> = Box::new(TcpListener::bind(address).await?);
            Ok(listener)
        })
    }
}

impl Listen for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Link>>> {
        Box::pin(async move { boxed(TcpListener::accept(self).await?.0) })
    }
}

fn boxed(link: TcpStream) -> io::Result<Box<dyn Link>> {
    link.set_nodelay(true)?;
    Ok(Box::new(link))
}
