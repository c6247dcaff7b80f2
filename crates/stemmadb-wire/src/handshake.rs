//! The handshake: the client's `Hello` and the server's `Welcome`.

use stemmadb::Result;

use crate::reader::{Reader, malformed, write_text};
use crate::value::Encoding;

/// The first bytes of a `Hello`.
pub const MAGIC: [u8; 8] = *b"stemma\r\n";

/// The name of the protocol in the TLS handshake of QUIC (ALPN).
pub const QUIC_PROTOCOL: &[u8] = b"stemma";

/// The newest version of the protocol.
pub const VERSION: u16 = 1;

/// How a client says who it is.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Credentials {
    /// It does not.
    #[default]
    Anonymous,
    /// A name and a password.
    Password {
        /// The user's or administrator's name.
        user: String,
        /// The password.
        password: String,
    },
    /// An API token or a JSON Web Token.
    Token(String),
    /// The value of a session cookie.
    Session(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credentials::Anonymous => f.write_str("Anonymous"),
            Credentials::Password { user, .. } => {
                f.debug_struct("Password").field("user", user).finish_non_exhaustive()
            }
            Credentials::Token(_) => f.write_str("Token"),
            Credentials::Session(_) => f.write_str("Session"),
        }
    }
}

/// The client's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The oldest and the newest version of the protocol that the client speaks.
    pub versions: (u16, u16),
    /// The encoding of values in both directions.
    pub encoding: Encoding,
    /// Who the client is.
    pub credentials: Credentials,
}

impl Hello {
    /// Appends the payload of the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.versions.0.to_le_bytes());
        out.extend_from_slice(&self.versions.1.to_le_bytes());
        out.push(self.encoding as u8);
        match &self.credentials {
            Credentials::Anonymous => out.push(0),
            Credentials::Password { user, password } => {
                out.push(1);
                write_text(user, out);
                write_text(password, out);
            }
            Credentials::Token(token) => {
                out.push(2);
                write_text(token, out);
            }
            Credentials::Session(cookie) => {
                out.push(3);
                write_text(cookie, out);
            }
        }
    }

    /// Reads the payload of the frame.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn read(payload: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(payload);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(malformed("it does not begin with the protocol's magic bytes"));
        }
        let versions = (reader.u16()?, reader.u16()?);
        let encoding = Encoding::from_code(reader.u8()?)?;
        let credentials = match reader.u8()? {
            0 => Credentials::Anonymous,
            1 => Credentials::Password { user: reader.text()?.to_owned(), password: reader.text()?.to_owned() },
            2 => Credentials::Token(reader.text()?.to_owned()),
            3 => Credentials::Session(reader.text()?.to_owned()),
            _ => return Err(malformed("its kind of credentials is unknown")),
        };
        match reader.is_empty() {
            true => Ok(Hello { versions, encoding, credentials }),
            false => Err(malformed("bytes follow the credentials")),
        }
    }
}

/// The server's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version that the connection uses.
    pub version: u16,
    /// The largest frame that the server accepts, in bytes.
    pub frame_bytes_max: u32,
    /// The server's name and version.
    pub server: String,
}

impl Welcome {
    /// Appends the payload of the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.frame_bytes_max.to_le_bytes());
        write_text(&self.server, out);
    }

    /// Reads the payload of the frame. Later versions may append to it.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn read(payload: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(payload);
        Ok(Welcome { version: reader.u16()?, frame_bytes_max: reader.u32()?, server: reader.text()?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_round_trip_and_every_cut_is_an_error() {
        for credentials in [
            Credentials::Anonymous,
            Credentials::Password { user: "ada".into(), password: "geheim".into() },
            Credentials::Token("stemma_1_2".into()),
            Credentials::Session("YWRh".into()),
        ] {
            let hello = Hello { versions: (1, 3), encoding: Encoding::Packed, credentials };
            let mut bytes = Vec::new();
            hello.write(&mut bytes);
            assert_eq!(Hello::read(&bytes).unwrap(), hello);
            for length in 0..bytes.len() {
                assert!(Hello::read(&bytes[..length]).is_err());
            }
            bytes.push(0);
            assert!(Hello::read(&bytes).is_err());
            assert!(!format!("{hello:?}").contains("geheim"));
        }
        let welcome = Welcome { version: 1, frame_bytes_max: 99, server: "Stemma/0.1.0".into() };
        let mut bytes = Vec::new();
        welcome.write(&mut bytes);
        assert_eq!(Welcome::read(&bytes).unwrap(), welcome);
        assert!((0..bytes.len()).all(|length| Welcome::read(&bytes[..length]).is_err()));
    }
}
