//! Who is it, and may they?

mod administrators;
mod clock;
mod cookie;
mod jwt;
mod lockout;
mod login;
mod password;
mod security;
mod site;
mod standing;
mod token;
pub(crate) mod users;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::{AUTHORIZATION, COOKIE};
use hyper::http::request::Parts;
use serde::Serialize;

use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::Parameters;
use crate::routes::Route;
use crate::settings::Live;
use clock::Forward;
use cookie::Claimed;
use jwt::JwtKeys;
use lockout::Lockout;
use login::Logins;

pub(crate) use administrators::Administrators;
pub(crate) use lockout::site;
pub(crate) use password::Credential;
pub(crate) use security::Security;
pub(crate) use site::{PREFLIGHT, check_host, check_origin, check_page, cors_headers, is_of_script};
pub(crate) use standing::Standing;
pub(crate) use token::{Scope, Tokens, Wanted};

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Anybody.
    Anonymous,
    /// Whoever said who they are.
    User,
    /// Members of the database, which are all where none are named; and its administrators.
    Member,
    /// Administrators of the database, and of the server.
    DatabaseAdmin,
    /// Whoever has the role `_metrics`, and administrators of the server.
    Metrics,
    /// Administrators of the server.
    ServerAdmin,
}

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct User {
    /// None: nobody said.
    pub(crate) name: Option<String>,
    pub(crate) roles: Vec<String>,
    /// How they said who they are.
    #[serde(skip)]
    pub(crate) how: Option<&'static str>,
}

/// The role of those who may look at numbers; a user's document can't give it.
const METRICS_ROLE: &str = "_metrics";
/// The role of those who may do everything.
pub(crate) const ADMIN_ROLE: &str = "_admin";

impl User {
    pub(crate) fn is_server_admin(&self) -> bool {
        self.roles.iter().any(|role| role == ADMIN_ROLE)
    }
}

/// What somebody has shown to be who they are, as far as it can be looked at again later.
#[derive(Debug, Clone)]
pub(crate) enum Claim {
    /// Nothing, by nobody.
    Nothing,
    /// A token, or one that others sign, as it was sent.
    Token(String),
    /// A session.
    Session(Claimed),
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

/// The address that a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Peer {
    /// That of a request.
    pub(crate) fn of(parts: &Parts) -> IpAddr {
        // Every connection notes it; one that did not would share its lockout with all such.
        parts.extensions.get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0.ip())
    }
}

impl Identity {
    /// Nobody who said who they are.
    pub(crate) fn nobody() -> Self {
        Identity::of(User::default(), Claim::Nothing)
    }

    /// Somebody without a token of this server, and without another cookie.
    fn of(user: User, claim: Claim) -> Self {
        Identity { user, claim, scope: None, cookie: None }
    }
}

/// Tells who makes a request.
pub(crate) struct Auth {
    administrators: Administrators,
    secret: Vec<u8>,
    logins: Logins,
    jwt_keys: JwtKeys,
    tokens: Tokens,
    /// What sessions begin and end by.
    clock: Forward,
    live: Arc<Live>,
    is_secure: bool,
}

/// Who has a name here.
struct Known {
    roles: Vec<String>,
    credential: Credential,
}

fn wrong() -> Failure {
    Failure::unauthorized("Name or password is incorrect.")
}

impl Auth {
    /// With administrators and tokens, and the secret that cookies are made with.
    ///
    /// # Errors
    /// 400 if a key of the configuration is none.
    pub(crate) fn new(
        live: Arc<Live>,
        administrators: Administrators,
        tokens: Tokens,
        secret: Vec<u8>,
    ) -> Result<Self> {
        let config = live.config();
        Ok(Auth {
            administrators,
            secret,
            logins: Logins::new(Lockout::new(config.lockout.tries, config.lockout.wait_max)),
            jwt_keys: JwtKeys::new(&config.jwt_keys, config.clock.clone())?,
            tokens,
            clock: Forward::new(config.clock.clone()),
            is_secure: config.tls.is_some(),
            live,
        })
    }

    /// Administrators of the server.
    pub(crate) fn administrators(&self) -> &Administrators {
        &self.administrators
    }

    fn session_timeout(&self) -> Duration {
        self.live.config().session_timeout
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
            let (user, claim) = self.verified(directory, Peer::of(parts), name, password).await?;
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
    async fn claimed(&self, directory: &Arc<Directory>, claim: &Claim) -> Result<Option<User>> {
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
        let Some(claimed) = cookie_of(parts).and_then(Claimed::parse) else { return nobody() };
        let Some((user, cookie)) = self.of_session(directory, &claimed).await? else { return nobody() };
        Ok(Identity { cookie, ..Identity::of(user, Claim::Session(claimed)) })
    }

    /// Whose session it is, if it is one and not over; and another cookie, if it is time for one.
    async fn of_session(
        &self,
        directory: &Arc<Directory>,
        session: &Claimed,
    ) -> Result<Option<(User, Option<String>)>> {
        let Some(Known { roles, credential }) = self.known(directory, &session.name).await? else { return Ok(None) };
        let (mark, now) = (credential.mark(), self.clock.now());
        let verified = session.verify(&self.secret, &mark, now, self.session_timeout());
        Ok(verified.map(|is_old| {
            let cookie = is_old.then(|| self.cookie(&cookie::make(&self.secret, &mark, &session.name, now)));
            (User { name: Some(session.name.clone()), roles, how: Some("cookie") }, cookie)
        }))
    }

    async fn known(&self, directory: &Arc<Directory>, name: &str) -> Result<Option<Known>> {
        if let Some(credential) = self.administrators.credential(name) {
            return Ok(Some(Known { roles: vec![ADMIN_ROLE.to_owned()], credential }));
        }
        if !directory.contains(users::DATABASE) {
            return Ok(None);
        }
        let served = directory.open_served(users::DATABASE).await?;
        let account = users::account(&served, name)?;
        Ok(account.map(|account| Known { roles: account.roles, credential: account.credential }))
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
            Ok(match directory.contains(users::DATABASE) {
                true => Some(directory.open_served(users::DATABASE).await?),
                false => None,
            })
        };
        let mark = self.logins.verify(address, name, password, credential, users).await?.ok_or_else(wrong)?;
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

/// Whether `user` may use a route; `security` is that of the database it is about, if it is about one.
///
/// # Errors
/// 401 if they did not say who they are, 403 if they did and may not.
fn authorize(user: &User, access: Access, security: Option<&Security>) -> Result<()> {
    if user.is_server_admin() {
        return Ok(());
    }
    let is_allowed = match access {
        Access::Anonymous => true,
        Access::User => user.name.is_some(),
        Access::Member => security.is_some_and(|security| security.is_member(user)),
        Access::DatabaseAdmin => security.is_some_and(|security| security.is_admin(user)),
        Access::Metrics => user.roles.iter().any(|role| role == METRICS_ROLE),
        Access::ServerAdmin => false,
    };
    match (is_allowed, &user.name, access) {
        (true, _, _) => Ok(()),
        (false, None, Access::Metrics | Access::ServerAdmin) => {
            Err(Failure::unauthorized("You are not a server admin."))
        }
        (false, None, _) => Err(Failure::unauthorized("You are not authorized to access this db.")),
        (false, Some(_), Access::Metrics | Access::ServerAdmin) => {
            Err(Failure::forbidden("You are not a server admin."))
        }
        (false, Some(_), _) => Err(Failure::forbidden("You are not allowed to access this db.")),
    }
}

/// Whether `user` may use a route, with the parameters that its path has.
///
/// # Errors
/// As [`authorize`]; 404 if there is no such database.
pub(crate) async fn permit(
    directory: &Arc<Directory>,
    route: &Route,
    parameters: &Parameters,
    user: &User,
) -> Result<()> {
    let database = parameters.get("db");
    let security = match (route.access, database) {
        (Access::Member | Access::DatabaseAdmin, Some(name)) => Some(directory.security(name).await?),
        _ => None,
    };
    let is_of_users = database == Some(users::DATABASE) && route.access == Access::Member;
    if is_of_users && !security.as_deref().is_some_and(|security| security.is_admin(user)) {
        return users::authorize(user, route, parameters.get("doc"));
    }
    authorize(user, route.access, security.as_deref())
}
