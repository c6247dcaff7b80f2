//! Authenticates requests: by password, session cookie, API token or JSON Web Token.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::{AUTHORIZATION, COOKIE};
use hyper::http::request::Parts;

use super::administrators::Administrators;
use super::clock::ForwardClock;
use super::cookie::{self, SessionCookie};
use super::identity::{Claim, Identity};
use super::jwt::JwtKeys;
use super::lockout::Lockout;
use super::password_verifier::PasswordVerifier;
use super::token::{self, Tokens};
use super::users;
use crate::auth::{ADMIN_ROLE, Credential, USERS_DATABASE, User};
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::PeerAddress;
use crate::settings::RuntimeSettings;

/// Tells who makes a request.
pub(crate) struct Authenticator {
    administrators: Administrators,
    secret: Vec<u8>,
    passwords: PasswordVerifier,
    jwt_keys: JwtKeys,
    tokens: Tokens,
    /// What sessions begin and end by.
    clock: ForwardClock,
    settings: Arc<RuntimeSettings>,
    is_secure: bool,
}

/// Who has a name here.
struct NamedAccount {
    roles: Vec<String>,
    credential: Credential,
}

fn wrong() -> Failure {
    Failure::unauthorized("Name or password is incorrect.")
}

impl Authenticator {
    /// With administrators and tokens, and the secret that cookies are made with.
    ///
    /// # Errors
    /// 400 if a key of the configuration is none.
    pub(crate) fn new(
        settings: Arc<RuntimeSettings>,
        administrators: Administrators,
        tokens: Tokens,
        secret: Vec<u8>,
    ) -> Result<Self> {
        let config = settings.config();
        Ok(Authenticator {
            administrators,
            secret,
            passwords: PasswordVerifier::new(Lockout::new(config.lockout.tries, config.lockout.wait_max)),
            jwt_keys: JwtKeys::new(&config.jwt_keys, config.clock.clone())?,
            tokens,
            clock: ForwardClock::new(config.clock.clone()),
            is_secure: config.tls.is_some(),
            settings,
        })
    }

    /// Administrators of the server.
    pub(crate) fn administrators(&self) -> &Administrators {
        &self.administrators
    }

    fn session_timeout(&self) -> Duration {
        self.settings.config().session_timeout
    }

    /// Who makes this request.
    ///
    /// # Errors
    /// 401 if they say who they are, and it is not so. A session that is over is as none.
    pub(crate) async fn authenticate(&self, directory: &Arc<Directory>, parts: &Parts) -> Result<Identity> {
        let Some(header) = parts.headers.get(AUTHORIZATION) else { return self.by_cookie(directory, parts).await };
        let text = header.to_str().map_err(|_| wrong())?;
        let (scheme, rest) = text.split_once(' ').ok_or_else(wrong)?;
        if scheme.eq_ignore_ascii_case("basic") {
            let decoded = BASE64_STANDARD.decode(rest.trim()).map_err(|_| wrong())?;
            let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
            let (name, password) = decoded.split_once(':').ok_or_else(wrong)?;
            let (user, claim) = self.verified(directory, PeerAddress::of(parts), name, password).await?;
            return Ok(Identity::of(User { how: Some("default"), ..user }, claim));
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(wrong());
        }
        let refused = || Failure::unauthorized("The token is not valid.");
        self.by_token(directory, rest.trim()).await?.ok_or_else(refused)
    }

    /// Who makes requests with a token; none if it is not, or not any more.
    async fn by_token(&self, directory: &Arc<Directory>, text: &str) -> Result<Option<Identity>> {
        let claim = Claim::Token(text.to_owned());
        if !text.starts_with(token::PREFIX) {
            return Ok(self.jwt_keys.user(text).map(|user| Identity::of(user, claim)));
        }
        let Some(token) = self.tokens.verify(text) else { return Ok(None) };
        let user = match &token.user {
            None => token.itself(),
            Some(name) => {
                let Some(known) = self.known(directory, name).await? else { return Ok(None) };
                User { name: Some(name.clone()), roles: known.roles, how: Some("token") }
            }
        };
        Ok(Some(Identity { scope: Some(token.scope.clone()), ..Identity::of(user, claim) }))
    }

    /// Who it is that has shown this once, if it is still so.
    pub(super) async fn claimed(&self, directory: &Arc<Directory>, claim: &Claim) -> Result<Option<User>> {
        Ok(match claim {
            Claim::Nothing => Some(User::default()),
            Claim::Token(text) => self.by_token(directory, text).await?.map(|identity| identity.user),
            Claim::Session(session) => self.of_session(directory, session).await?.map(|(user, _)| user),
            Claim::Password { name, mark } => {
                let known = self.known(directory, name).await?.filter(|known| known.credential.mark() == *mark);
                known.map(|known| User { name: Some(name.clone()), roles: known.roles, how: None })
            }
        })
    }

    /// All tokens.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    async fn by_cookie(&self, directory: &Arc<Directory>, parts: &Parts) -> Result<Identity> {
        let nobody = || Ok(Identity::nobody());
        let Some(claimed) = cookie_of(parts).and_then(SessionCookie::parse) else { return nobody() };
        let Some((user, cookie)) = self.of_session(directory, &claimed).await? else { return nobody() };
        Ok(Identity { cookie, ..Identity::of(user, Claim::Session(claimed)) })
    }

    /// Whose session it is, if it is one and not over; and another cookie, if it is time for one.
    async fn of_session(
        &self,
        directory: &Arc<Directory>,
        session: &SessionCookie,
    ) -> Result<Option<(User, Option<String>)>> {
        let Some(NamedAccount { roles, credential }) = self.known(directory, &session.name).await? else {
            return Ok(None);
        };
        let (mark, now) = (credential.mark(), self.clock.now());
        let verified = session.verify(&self.secret, &mark, now, self.session_timeout());
        Ok(verified.map(|is_old| {
            let cookie = is_old.then(|| self.cookie(&cookie::make(&self.secret, &mark, &session.name, now)));
            (User { name: Some(session.name.clone()), roles, how: Some("cookie") }, cookie)
        }))
    }

    async fn known(&self, directory: &Arc<Directory>, name: &str) -> Result<Option<NamedAccount>> {
        if let Some(credential) = self.administrators.credential(name) {
            return Ok(Some(NamedAccount { roles: vec![ADMIN_ROLE.to_owned()], credential }));
        }
        if !directory.contains(USERS_DATABASE) {
            return Ok(None);
        }
        let served = directory.open_served(USERS_DATABASE).await?;
        let account = users::account(&served, name)?;
        Ok(account.map(|account| NamedAccount { roles: account.roles, credential: account.credential }))
    }

    /// The user with this name and password.
    ///
    /// # Errors
    /// 401 if there is none; 429 if there were too many wrong passwords from this address.
    pub(crate) async fn log_in(
        &self,
        directory: &Arc<Directory>,
        address: IpAddr,
        name: &str,
        password: &str,
    ) -> Result<User> {
        Ok(self.verified(directory, address, name, password).await?.0)
    }

    async fn verified(
        &self,
        directory: &Arc<Directory>,
        address: IpAddr,
        name: &str,
        password: &str,
    ) -> Result<(User, Claim)> {
        let known = self.known(directory, name).await?;
        let (roles, credential) = match known {
            Some(known) => (known.roles, Some(known.credential)),
            None => (Vec::new(), None),
        };
        let users = async {
            Ok(match directory.contains(USERS_DATABASE) {
                true => Some(directory.open_served(USERS_DATABASE).await?),
                false => None,
            })
        };
        let mark = self.passwords.verify(address, name, password, credential, users).await?.ok_or_else(wrong)?;
        let name = name.to_owned();
        Ok((User { name: Some(name.clone()), roles, how: None }, Claim::Password { name, mark }))
    }

    /// A `Set-Cookie` that begins a session of `name`.
    pub(crate) async fn session(&self, directory: &Arc<Directory>, name: &str) -> Result<String> {
        let known = self.known(directory, name).await?.ok_or_else(wrong)?;
        Ok(self.cookie(&cookie::make(&self.secret, &known.credential.mark(), name, self.clock.now())))
    }

    fn cookie(&self, value: &str) -> String {
        let seconds = if value.is_empty() { 0 } else { self.session_timeout().as_secs() };
        let secure = if self.is_secure { "; Secure" } else { "" };
        format!("{}={value}; Version=1; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Lax{secure}", cookie::NAME)
    }

    /// A `Set-Cookie` that ends a session.
    pub(crate) fn no_session(&self) -> String {
        self.cookie("")
    }
}

fn cookie_of(parts: &Parts) -> Option<&str> {
    let cookies = parts.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(name, value)| *name == cookie::NAME && !value.is_empty()).map(|(_, value)| value)
}
