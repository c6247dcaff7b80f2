//! The handshake: reads the client's `Hello`, authenticates it as an HTTP request with the same credentials would be,
//! and answers.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::Request;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderValue};
use stemmadb::Error;
use stemmadb_wire::{Credentials, Encoding, Frame, FrameKind, Hello, VERSION, Welcome};

use super::connection::Connection;
use super::failure::Result;
use super::server::WireServer;
use crate::accounts::Identity;
use crate::auth::{SERVER_SEAL, SERVER_TOKEN};
use crate::error::Failure;
use crate::http::PeerAddress;

/// Handles the first frame. Returns the encoding of values, the client's identity, and the answer.
pub(super) fn accept(
    server: &WireServer,
    connection: &Connection,
    frame: &Frame<'_>,
) -> Result<(Encoding, Identity, Welcome)> {
    if frame.kind != FrameKind::Hello {
        return Err(Error::invalid("the first frame of a connection is a Hello").into());
    }
    let hello = Hello::read(frame.payload)?;
    if hello.versions.0 > VERSION || hello.versions.1 < VERSION {
        return Err(Error::invalid(format!(
            "the client speaks versions {} to {} of the protocol, this server speaks version {VERSION}",
            hello.versions.0, hello.versions.1
        ))
        .with_hint("use a client and a server of the same age")
        .into());
    }
    let identity = authenticate(server, connection, &hello.credentials)?;
    if server.state.settings.config().require_valid_user && identity.user.name.is_none() {
        return Err(Failure::unauthorized("Authentication required.").into());
    }
    let welcome = Welcome {
        version: VERSION,
        frame_bytes_max: u32::try_from(server.state.config.limits.body_bytes).unwrap_or(u32::MAX),
        server: concat!("Stemma/", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    Ok((hello.encoding, identity, welcome))
}

/// Authenticates credentials by the rules of HTTP, with its lockout after wrong passwords.
fn authenticate(server: &WireServer, connection: &Connection, credentials: &Credentials) -> Result<Identity> {
    let header = match credentials {
        Credentials::Anonymous => return Ok(Identity::anonymous()),
        Credentials::Password { user, password } => {
            let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
            (AUTHORIZATION, format!("Basic {encoded}"))
        }
        Credentials::Token(token) => match token.strip_prefix(SERVER_TOKEN) {
            Some(seal) => (SERVER_SEAL, seal.to_owned()),
            None => (AUTHORIZATION, format!("Bearer {token}")),
        },
        Credentials::Session(cookie) => (COOKIE, format!("AuthSession={cookie}")),
    };
    let malformed = || Failure::unauthorized("The credentials are malformed.");
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.headers.insert(header.0, HeaderValue::from_str(&header.1).map_err(|_| malformed())?);
    parts.extensions.insert(PeerAddress(connection.peer));
    let state = &server.state;
    let identity = server.wait(state.authenticator.authenticate(&state.directory, &parts))?;
    match identity.user.name {
        Some(_) => Ok(identity),
        // Over HTTP, an expired session is an anonymous request; a client would not notice here.
        None => Err(Failure::unauthorized("The session has expired.").into()),
    }
}
