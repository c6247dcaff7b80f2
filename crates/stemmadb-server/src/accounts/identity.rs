//! The identity that a request was authenticated as, and the proof that it was authenticated by.

use stemmadb_http::signature::ContentHash;

use super::cookie::SessionCookie;
use super::token::TokenScope;
use crate::auth::User;

/// The proof of an identity, as far as it can be verified again later.
#[derive(Debug, Clone)]
pub(crate) enum AuthProof {
    /// None: the request is anonymous.
    Nothing,
    /// The headers of a trusted proxy, which named this user.
    Proxy(User),
    /// An API token or a JSON Web Token, as it was sent.
    Token(String),
    /// A signature by this public key, which a token has.
    Key(String),
    /// A session cookie.
    Session(SessionCookie),
    /// Knowledge of the password of `name` that had this fingerprint.
    Password { name: String, fingerprint: String },
}

/// The identity that a request is made with.
pub(crate) struct Identity {
    pub(crate) user: User,
    pub(crate) proof: AuthProof,
    /// The restrictions of an API token.
    pub(crate) scope: Option<TokenScope>,
    /// The hash of the body that was signed with the request.
    pub(crate) signed_content: Option<ContentHash>,
    /// A new session cookie for the response, if the session must be renewed.
    pub(crate) cookie: Option<String>,
}

impl Identity {
    /// The identity of a request without credentials.
    pub(crate) fn anonymous() -> Self {
        Identity::new(User::default(), AuthProof::Nothing)
    }

    /// An identity without restrictions and without a new cookie.
    pub(super) fn new(user: User, proof: AuthProof) -> Self {
        Identity { user, proof, scope: None, signed_content: None, cookie: None }
    }
}
