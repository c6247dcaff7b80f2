//! Authenticates requests: by password, session cookie, API token, JSON Web Token, signature, or by a proxy.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, COOKIE};
use hyper::http::request::Parts;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use stemmadb_http::signature::SentSignature;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::administrators::Administrators;
use super::authorize::authorize;
use super::clock::MonotonicClock;
use super::cookie::{self, SessionCookie};
use super::identity::{AuthProof, Identity};
use super::jwt::JwtKeys;
use super::lockout::Lockout;
use super::password_verifier::PasswordVerifier;
use super::proxy;
use super::roles::Roles;
use super::signatures::AcceptedSignatures;
use super::token::{self, Token, Tokens};
use super::users;
use crate::auth::{ADMIN_ROLE, Credential, Restriction, Route, SERVER_SEAL, USERS_DATABASE, User};
use crate::config::ProxySecret;
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::{Parameters, PeerAddress, blocking};
use crate::settings::RuntimeSettings;

/// Authenticates requests.
pub(crate) struct Authenticator {
    administrators: Administrators,
    secret: Vec<u8>,
    passwords: PasswordVerifier,
    jwt_keys: JwtKeys,
    proxy_secret: Option<ProxySecret>,
    tokens: Tokens,
    roles: Roles,
    signatures: AcceptedSignatures,
    /// The version of the cluster's records that administrators, tokens and roles are from.
    loaded: Mutex<Option<Uuid>>,
    /// The clock for the start and end of sessions.
    clock: MonotonicClock,
    settings: Arc<RuntimeSettings>,
    is_secure: bool,
}

/// An administrator or a user of `_users`.
struct NamedAccount {
    roles: Vec<String>,
    credential: Credential,
}

fn wrong_credentials() -> Failure {
    Failure::unauthorized("Name or password is incorrect.")
}

impl Authenticator {
    /// Loads the administrators, the tokens and the secret of cookies. Returns the generated password, if there is one.
    ///
    /// # Errors
    /// 500 if the catalog can't be read; 400 for a wrong configuration.
    pub(crate) fn load(settings: &Arc<RuntimeSettings>, directory: &Directory) -> Result<(Self, Option<String>)> {
        let (record, _) = directory.get_or_create_local("secret", || {
            let secret = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
            Ok(serde_json::json!({ "secret": secret }))
        })?;
        let secret = record.get("secret").and_then(stemmadb::Value::as_str).unwrap_or_default().as_bytes().to_vec();
        if secret.len() < 64 {
            return Err(Failure::internal("the server's secret in the catalog is damaged"));
        }
        let (administrators, generated) = Administrators::load(&settings.config(), directory)?;
        let (tokens, roles) = (Tokens::load(directory)?, Roles::load(directory)?);
        Ok((Authenticator::new(settings.clone(), administrators, tokens, roles, secret)?, generated))
    }

    /// Creates an authenticator. `secret` signs session cookies.
    ///
    /// # Errors
    /// 400 if a JWT key of the configuration is invalid.
    fn new(
        settings: Arc<RuntimeSettings>,
        administrators: Administrators,
        tokens: Tokens,
        roles: Roles,
        secret: Vec<u8>,
    ) -> Result<Self> {
        let config = settings.config();
        Ok(Authenticator {
            administrators,
            secret,
            passwords: PasswordVerifier::new(Lockout::new(config.lockout.tries, config.lockout.wait_max)),
            proxy_secret: config.proxy_secret.clone(),
            jwt_keys: JwtKeys::new(&config.jwt_keys, config.clock.clone())?,
            tokens,
            roles,
            signatures: AcceptedSignatures::default(),
            loaded: Mutex::default(),
            clock: MonotonicClock::new(config.clock.clone()),
            is_secure: config.is_encrypted(),
            settings,
        })
    }

    /// The server administrators.
    pub(crate) fn administrators(&self) -> &Administrators {
        &self.administrators
    }

    fn session_timeout(&self) -> Duration {
        self.settings.config().session_timeout
    }

    /// Authenticates a request.
    ///
    /// # Errors
    /// 401 if credentials are sent and invalid. An expired session counts as no credentials, and so does an unknown
    /// scheme, as in CouchDB.
    pub(crate) async fn authenticate(self: &Arc<Self>, directory: &Arc<Directory>, parts: &Parts) -> Result<Identity> {
        let proxied = self.proxy_secret.as_ref().and_then(|secret| proxy::user(&secret.0, &parts.headers));
        if let Some(user) = proxied {
            return Ok(Identity::new(user.clone(), AuthProof::Proxy(user)));
        }
        if let Some(header) = parts.headers.get(&SERVER_SEAL) {
            return self.by_seal(directory, header.as_bytes());
        }
        let Some(header) = parts.headers.get(AUTHORIZATION) else {
            return match SentSignature::parse(parts).map_err(|reason| Failure::unauthorized(format!("{reason}.")))? {
                Some(sent) => Box::pin(self.by_signature(directory, sent)).await,
                None => self.by_cookie(directory, parts).await,
            };
        };
        let text = header.to_str().map_err(|_| wrong_credentials())?;
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            let decoded = BASE64_STANDARD.decode(rest.trim()).map_err(|_| wrong_credentials())?;
            let decoded = String::from_utf8(decoded).map_err(|_| wrong_credentials())?;
            let (name, password) = decoded.split_once(':').ok_or_else(wrong_credentials)?;
            let (user, proof) = self.verify_password(directory, PeerAddress::of(parts), name, password).await?;
            return Ok(Identity::new(User { how: Some("default"), ..user }, proof));
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return self.by_cookie(directory, parts).await;
        }
        let refused = || Failure::unauthorized("The token is not valid.");
        self.by_token(directory, rest.trim()).await?.ok_or_else(refused)
    }

    /// The identity of another server of the cluster, which has the rights of an administrator.
    fn by_seal(&self, directory: &Directory, sent: &[u8]) -> Result<Identity> {
        if !directory.is_in_cluster() || !bool::from(sent.ct_eq(self.server_seal().as_bytes())) {
            return Err(Failure::forbidden(format!("`{SERVER_SEAL}` is for servers of a cluster.")));
        }
        let user = User::cluster_server();
        Ok(Identity::new(user.clone(), AuthProof::Proxy(user)))
    }

    /// The value of [`SERVER_SEAL`] by which a server of the cluster shows that it is one.
    pub(crate) fn server_seal(&self) -> String {
        self.seal("server")
    }

    /// The identity of a token. `None` if the token is invalid, expired or revoked.
    async fn by_token(self: &Arc<Self>, directory: &Arc<Directory>, text: &str) -> Result<Option<Identity>> {
        let proof = AuthProof::Token(text.to_owned());
        if !text.starts_with(token::PREFIX) {
            return Ok(self.jwt_keys.user(text).map(|user| Identity::new(user, proof)));
        }
        let mut found = self.tokens.verify(text);
        if found.is_none() && self.catch_up(directory).await? {
            found = self.tokens.verify(text);
        }
        match found {
            Some(token) => self.identity_of(directory, &token, proof).await,
            None => Ok(None),
        }
    }

    /// The identity of a signed request.
    ///
    /// # Errors
    /// 401 if no token has the key, or the signature is not genuine, too old, or was used before.
    async fn by_signature(self: &Arc<Self>, directory: &Arc<Directory>, sent: SentSignature) -> Result<Identity> {
        let unknown = || {
            let reason = "No token has the key of the signature: an administrator registers it with `POST /_tokens` \
                          and `public_key`.";
            Failure::unauthorized(reason)
        };
        let identity = self.by_key(directory, &sent.key_id).await?.ok_or_else(unknown)?;
        if !sent.is_genuine() {
            return Err(Failure::unauthorized("The signature is not that of this request."));
        }
        self.signatures.accept(&sent, self.clock.now())?;
        // Without a digest, only an empty body was signed.
        let content = sent.content.unwrap_or_else(|| Sha256::digest([]).into());
        Ok(Identity { signed_content: Some(content), ..identity })
    }

    /// The identity of the token that has a public key. `None` if there is none, or it has expired.
    async fn by_key(self: &Arc<Self>, directory: &Arc<Directory>, public_key: &str) -> Result<Option<Identity>> {
        let mut found = self.tokens.with_public_key(public_key);
        if found.is_none() && self.catch_up(directory).await? {
            found = self.tokens.with_public_key(public_key);
        }
        match found {
            Some(token) => self.identity_of(directory, &token, AuthProof::Key(public_key.to_owned())).await,
            None => Ok(None),
        }
    }

    /// The identity of a token. `None` if it acts for a user who does not exist.
    async fn identity_of(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        token: &Token,
        proof: AuthProof,
    ) -> Result<Option<Identity>> {
        let user = match &token.user {
            None => token.as_user(),
            Some(name) => {
                let Some(known) = self.account(directory, name).await? else { return Ok(None) };
                User { name: Some(name.clone()), roles: known.roles, how: Some("token") }
            }
        };
        Ok(Some(Identity { scope: Some(token.scope.clone()), ..Identity::new(user, proof) }))
    }

    /// Checks again a proof that was verified before. Returns the user if it is still valid.
    pub(crate) async fn reverify(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        proof: &AuthProof,
    ) -> Result<Option<User>> {
        Ok(match proof {
            AuthProof::Nothing => Some(User::default()),
            AuthProof::Proxy(user) => Some(user.clone()),
            AuthProof::Token(text) => self.by_token(directory, text).await?.map(|identity| identity.user),
            AuthProof::Key(key) => self.by_key(directory, key).await?.map(|identity| identity.user),
            AuthProof::Session(session) => self.session_user(directory, session).await?.map(|(user, _)| user),
            AuthProof::Password { name, fingerprint } => {
                let known =
                    self.account(directory, name).await?.filter(|known| known.credential.fingerprint() == *fingerprint);
                known.map(|known| User { name: Some(name.clone()), roles: known.roles, how: None })
            }
        })
    }

    /// Reads the administrators, tokens and roles that other servers of the cluster have changed. Blocks.
    ///
    /// # Errors
    /// 503 if the cluster does not answer.
    pub(crate) fn newest(&self, directory: &Directory) -> Result<&Self> {
        let version = directory.refresh()?;
        let mut loaded = self.loaded.lock();
        if *loaded != version {
            self.administrators.reload(directory)?;
            self.tokens.reload(directory)?;
            self.roles.reload(directory)?;
            *loaded = version;
        }
        Ok(self)
    }

    /// Reads what other servers of the cluster have changed just now, before something is refused that they may have
    /// created. Returns whether the server is in a cluster.
    async fn catch_up(self: &Arc<Self>, directory: &Arc<Directory>) -> Result<bool> {
        if !directory.is_in_cluster() {
            return Ok(false);
        }
        let (this, read) = (self.clone(), directory.clone());
        blocking(move || this.newest(&read).map(drop)).await?;
        directory.catch_up(USERS_DATABASE).await?;
        Ok(true)
    }

    /// Checks that a user may use a route: see [`authorize`]. A refusal is for what all servers of the cluster know.
    pub(crate) async fn authorize(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        route: &Route,
        parameters: &Parameters,
        user: &User,
    ) -> Result<Option<Restriction>> {
        let authorized = authorize(directory, &self.roles, route, parameters, user).await;
        match authorized {
            Err(failure)
                if failure.status() == StatusCode::FORBIDDEN
                    && !user.roles.is_empty()
                    && self.catch_up(directory).await? =>
            {
                authorize(directory, &self.roles, route, parameters, user).await
            }
            authorized => authorized,
        }
    }

    /// The API tokens.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The roles with statements.
    pub(crate) fn roles(&self) -> &Roles {
        &self.roles
    }

    async fn by_cookie(self: &Arc<Self>, directory: &Arc<Directory>, parts: &Parts) -> Result<Identity> {
        let anonymous = || Ok(Identity::anonymous());
        let Some(claimed) = cookie_of(parts).and_then(SessionCookie::parse) else { return anonymous() };
        let Some((user, cookie)) = self.session_user(directory, &claimed).await? else { return anonymous() };
        Ok(Identity { cookie, ..Identity::new(user, AuthProof::Session(claimed)) })
    }

    /// The user of a valid session, and a new cookie if the session must be renewed.
    async fn session_user(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        session: &SessionCookie,
    ) -> Result<Option<(User, Option<String>)>> {
        let Some(mut account) = self.account(directory, &session.name).await? else { return Ok(None) };
        let (mut fingerprint, now) = (account.credential.fingerprint(), self.clock.now());
        let mut verified = session.verify(&self.secret, &fingerprint, now, self.session_timeout());
        if verified.is_none() && self.catch_up(directory).await? {
            // It may have begun just now on another server, after the password was changed.
            let Some(newest) = self.known_account(directory, &session.name).await? else { return Ok(None) };
            (fingerprint, account) = (newest.credential.fingerprint(), newest);
            verified = session.verify(&self.secret, &fingerprint, now, self.session_timeout());
        }
        let roles = account.roles;
        Ok(verified.map(|must_renew| {
            let cookie = must_renew.then(|| self.cookie(&cookie::make(&self.secret, &fingerprint, &session.name, now)));
            (User { name: Some(session.name.clone()), roles, how: Some("cookie") }, cookie)
        }))
    }

    /// The administrator or user of a name. One that is unknown may have been created just now, on another server.
    async fn account(self: &Arc<Self>, directory: &Arc<Directory>, name: &str) -> Result<Option<NamedAccount>> {
        match self.known_account(directory, name).await? {
            None if self.catch_up(directory).await? => self.known_account(directory, name).await,
            known => Ok(known),
        }
    }

    async fn known_account(&self, directory: &Arc<Directory>, name: &str) -> Result<Option<NamedAccount>> {
        if let Some(credential) = self.administrators.credential(name) {
            return Ok(Some(NamedAccount { roles: vec![ADMIN_ROLE.to_owned()], credential }));
        }
        let Some(served) = directory.open_to_read(USERS_DATABASE).await? else { return Ok(None) };
        let account = users::account(&served, name)?;
        Ok(account.map(|account| NamedAccount { roles: account.roles, credential: account.credential }))
    }

    /// Verifies a name and password and returns the user.
    ///
    /// # Errors
    /// 401 if they are wrong; 429 after too many wrong passwords for this name from this address.
    pub(crate) async fn log_in(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        address: IpAddr,
        name: &str,
        password: &str,
    ) -> Result<User> {
        Ok(self.verify_password(directory, address, name, password).await?.0)
    }

    async fn verify_password(
        self: &Arc<Self>,
        directory: &Arc<Directory>,
        address: IpAddr,
        name: &str,
        password: &str,
    ) -> Result<(User, AuthProof)> {
        let mut known = self.account(directory, name).await?;
        loop {
            let (roles, credential) = match known {
                Some(known) => (known.roles, Some(known.credential)),
                None => (Vec::new(), None),
            };
            let tried = credential.as_ref().map(Credential::fingerprint);
            let users = directory.open_to_read(USERS_DATABASE);
            let name = name.to_owned();
            match self.passwords.verify(address, &name, password, credential, users).await? {
                Some(fingerprint) => {
                    let user = User { name: Some(name.clone()), roles, how: None };
                    return Ok((user, AuthProof::Password { name, fingerprint }));
                }
                None if tried.is_none() || !self.catch_up(directory).await? => return Err(wrong_credentials()),
                None => {}
            }
            // The password may have been changed just now, on another server.
            known = self.known_account(directory, &name).await?;
            if known.as_ref().map(|known| known.credential.fingerprint()) == tried {
                return Err(wrong_credentials());
            }
        }
    }

    /// A seal of a text, by which another server of the cluster recognizes that a server of it has written it.
    pub(crate) fn seal(&self, text: &str) -> String {
        cookie::seal(&self.secret, text)
    }

    /// A `Set-Cookie` header that starts a session of `name`.
    pub(crate) async fn session(self: &Arc<Self>, directory: &Arc<Directory>, name: &str) -> Result<String> {
        let known = self.account(directory, name).await?.ok_or_else(wrong_credentials)?;
        Ok(self.cookie(&cookie::make(&self.secret, &known.credential.fingerprint(), name, self.clock.now())))
    }

    fn cookie(&self, value: &str) -> String {
        let seconds = if value.is_empty() { 0 } else { self.session_timeout().as_secs() };
        let secure = if self.is_secure { "; Secure" } else { "" };
        format!("{}={value}; Version=1; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Lax{secure}", cookie::NAME)
    }

    /// A `Set-Cookie` header that ends a session.
    pub(crate) fn no_session(&self) -> String {
        self.cookie("")
    }
}

fn cookie_of(parts: &Parts) -> Option<&str> {
    let cookies = parts.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(name, value)| *name == cookie::NAME && !value.is_empty()).map(|(_, value)| value)
}
