//! The identity that a request was authenticated as, and the proof that it was authenticated by.

use super::cookie::SessionCookie;
use super::token::Scope;
use crate::auth::User;

/// What somebody has shown to be who they are, as far as it can be looked at again later.
#[derive(Debug, Clone)]
pub(crate) enum Claim {
    /// Nothing, by nobody.
    Nothing,
    /// A token, or one that others sign, as it was sent.
    Token(String),
    /// A session.
    Session(SessionCookie),
    /// That they know the password of `name`, when it was this one.
    Password { name: String, mark: String },
}

/// Who makes a request, and what is sent back with whatever is answered.
pub(crate) struct Identity {
    pub(crate) user: User,
    pub(crate) claim: Claim,
    /// What a token is bound to, if it was one.
    pub(crate) scope: Option<Scope>,
    /// Another cookie, if it is time for one.
    pub(crate) cookie: Option<String>,
}

impl Identity {
    /// Nobody who said who they are.
    pub(crate) fn nobody() -> Self {
        Identity::of(User::default(), Claim::Nothing)
    }

    /// Somebody without a token of this server, and without another cookie.
    pub(super) fn of(user: User, claim: Claim) -> Self {
        Identity { user, claim, scope: None, cookie: None }
    }
}
