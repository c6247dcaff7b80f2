//! QUIC: each bidirectional stream of a connection is one connection of the wire protocol, which needs no handshake of
//! its own for the network.
//!
//! A stream's bytes are carried to and from a local socket, which is served like a Unix socket's connection.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime, TransportConfig, VarInt};
use stemmadb_wire::QUIC_PROTOCOL;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::server::WireServer;
use crate::config::Tls;
use crate::connections::next_chunk;
use crate::error::{Failure, Result};

/// The most streams of a connection: calls and feeds that a client has under way.
const STREAMS_MAX: u32 = 1024;
/// The bytes that a client may send before the server reads them: on one stream, and on all of a connection.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const WINDOW_BYTES: u32 = 4 << 20;
/// The time after which a client that is not heard is gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The bytes that are carried at once.
const CHUNK_BYTES: usize = 32 << 10;
/// How long the other direction of a stream may go on after one has ended, and how long closing all connections may
/// take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A listener for QUIC.
pub(super) struct QuicListener {
    endpoint: Endpoint,
    address: SocketAddr,
}

impl QuicListener {
    /// Listens on a UDP address. The connections belong to the server that `server` returns.
    ///
    /// # Errors
    /// 400 if the certificate can't be read; 500 if the address can't be bound.
    pub(super) fn bind(address: SocketAddr, tls: &Tls, runtime: &Handle) -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| Failure::internal(format!("cannot listen on {address}: {error}"));
        let mut tls = crate::tls::server_config(tls)?;
        tls.alpn_protocols = vec![QUIC_PROTOCOL.to_vec()];
        let tls = QuicServerConfig::try_from(tls).map_err(|error| failed(&error))?;
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(STREAMS_MAX.into())
            .max_concurrent_uni_streams(0_u8.into())
            .stream_receive_window(STREAM_WINDOW_BYTES.into())
            .receive_window(WINDOW_BYTES.into())
            .congestion_controller_factory(Arc::new(quinn::congestion::BbrConfig::default()))
            .max_idle_timeout(SILENCE_MAX.try_into().ok());
        let mut config = ServerConfig::with_crypto(Arc::new(tls));
        config.transport_config(Arc::new(transport));
        let socket = std::net::UdpSocket::bind(address).map_err(|error| failed(&error))?;
        let _context = runtime.enter();
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime));
        let endpoint = endpoint.map_err(|error| failed(&error))?;
        let address = endpoint.local_addr().map_err(|error| failed(&error))?;
        Ok(QuicListener { endpoint, address })
    }

    /// The address that it listens on.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections until [`QuicListener::close`].
    pub(super) fn serve(&self, server: &Arc<WireServer>) {
        server.runtime.spawn(accept_connections(self.endpoint.clone(), Arc::downgrade(server)));
    }

    /// Closes all connections. Blocks for a short time.
    pub(super) fn close(&self, runtime: &Handle) {
        self.endpoint.close(VarInt::from_u32(0), b"the server stops");
        runtime.block_on(async { timeout(CLOSE_TIMEOUT, self.endpoint.wait_idle()).await.ok() });
    }
}

async fn accept_connections(endpoint: Endpoint, server: Weak<WireServer>) {
    while let Some(incoming) = endpoint.accept().await {
        let Some(state) = server.upgrade().map(|server| server.state.clone()) else { return };
        let (peer, limits) = (incoming.remote_address(), &state.config.limits);
        let Some(counted) = state.connections.admit(peer.ip(), limits.connection_count_per_address) else {
            incoming.refuse();
            continue;
        };
        let (server, handshake_timeout) = (server.clone(), limits.handshake_timeout);
        tokio::spawn(async move {
            let Ok(connecting) = incoming.accept() else { return };
            let Ok(Ok(connection)) = timeout(handshake_timeout, connecting).await else { return };
            while let Ok((to_client, from_client)) = connection.accept_bi().await {
                let Some(server) = server.upgrade() else { break };
                let Ok(stream) = server.open_local(peer) else { continue };
                tokio::spawn(carry(stream, from_client, to_client, server.state.config.limits.stall_timeout));
            }
            drop(counted);
        });
    }
}

/// Carries bytes in both directions until either side closes.
async fn carry(stream: UnixStream, from_client: RecvStream, to_client: SendStream, stall_timeout: Duration) {
    let (from_stream, to_stream) = stream.into_split();
    let mut incoming = pin!(receive(from_client, to_stream));
    let mut outgoing = pin!(send(from_stream, to_client, stall_timeout));
    tokio::select! {
        () = &mut incoming => drop(timeout(CLOSE_TIMEOUT, outgoing).await),
        // Further bytes of the client are not read.
        () = &mut outgoing => {}
    }
}

async fn receive(mut from_client: RecvStream, mut to_stream: OwnedWriteHalf) {
    while let Ok(Some(chunk)) = from_client.read_chunk(CHUNK_BYTES, true).await {
        if to_stream.write_all(&chunk.bytes).await.is_err() {
            break;
        }
    }
    to_stream.shutdown().await.ok();
}

async fn send(from_stream: OwnedReadHalf, mut to_client: SendStream, stall_timeout: Duration) {
    while let Some(chunk) = next_chunk(&from_stream, CHUNK_BYTES).await {
        match timeout(stall_timeout, to_client.write_chunk(chunk.into())).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
    to_client.finish().ok();
}
