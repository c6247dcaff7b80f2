//! The database `_users`: a document for each user, which only they and administrators see and change.

use hyper::Method;
use stemmadb::{Object, Sequence, Value};

use super::User;
use super::password::{Costs, Credential};
use crate::directory::Served;
use crate::documents::Incoming;
use crate::error::{Failure, Result};
use crate::routes::Route;

/// The database's name.
pub(crate) const DATABASE: &str = "_users";
/// What the ids of users begin with.
const PREFIX: &str = "org.couchdb.user:";

/// A user as their document has them.
pub(super) struct Account {
    pub(super) roles: Vec<String>,
    pub(super) credential: Credential,
}

/// The user `name`. Blocks for a read.
pub(super) fn account(users: &Served, name: &str) -> Result<Option<Account>> {
    let Some(document) = users.database().get(&format!("{PREFIX}{name}"))? else { return Ok(None) };
    let user = document.value()?;
    let is_user = user.get("type").and_then(Value::as_str) == Some("user");
    let is_named = user.get("name").and_then(Value::as_str) == Some(name);
    let credential = Credential::of_user(&user).filter(|_| is_user && is_named);
    Ok(credential.map(|credential| Account { roles: roles(&user), credential }))
}

/// The most that it costs to verify the password of one of the users, as far as the database's feed was read.
#[derive(Debug, Default)]
pub(super) struct Dearest {
    read: Sequence,
    costs: Costs,
}

impl Dearest {
    /// What it costs now. Blocks: the first time for a look at every user, then for those that were written since.
    pub(super) fn follow(&mut self, users: Option<&Served>) -> Result<Costs> {
        let Some(users) = users else { return Ok(self.costs) };
        // Made anew, the database begins again.
        let since = if users.database().sequence() < self.read { Sequence::ZERO } else { self.read };
        let changes = users.database().changes(since)?.documents(true);
        let reached = changes.last_sequence();
        for change in changes.run() {
            let document = change?.document;
            if let Some(credential) =
                document.map(|document| document.value()).transpose()?.as_ref().and_then(Credential::of_user)
            {
                self.costs.note(&credential);
            }
        }
        self.read = reached;
        Ok(self.costs)
    }

    #[cfg(test)]
    pub(super) fn of(costs: Costs) -> Self {
        Dearest { costs, ..Dearest::default() }
    }
}

/// Roles that users may have: those that begin with an underscore are the server's.
fn roles(user: &Value) -> Vec<String> {
    let roles = user.get("roles").and_then(Value::as_array).unwrap_or_default();
    roles.iter().filter_map(Value::as_str).filter(|role| !role.starts_with('_')).map(str::to_owned).collect()
}

/// Whether somebody who is no administrator may use a route of this database: only that of their own document.
///
/// # Errors
/// 401 if they did not say who they are; 404 for the document of somebody else, as if there were none; 403 else.
pub(super) fn authorize(user: &User, route: &Route, document: Option<&str>) -> Result<()> {
    let Some(name) = &user.name else {
        return Err(Failure::unauthorized("You are not authorized to access this db."));
    };
    let is_document = route.path == "/{db}/{doc}" && matches!(route.method, Method::GET | Method::PUT | Method::DELETE);
    let is_own = document.and_then(|id| id.strip_prefix(PREFIX)) == Some(name);
    match (is_document, is_own) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::missing()),
        (false, _) => Err(Failure::forbidden("You are not allowed to access this db.")),
    }
}

/// Makes a user's document ready to be written: it is one, and the password in it is hashed. Takes some tens of milliseconds if there is
/// one.
///
/// # Errors
/// 403, saying what is wrong with it.
pub(crate) fn prepare(served: &Served, id: &str, document: &mut Incoming, user: &User) -> Result<()> {
    if document.deleted || id.starts_with("_design/") || id.starts_with("_local/") {
        return Ok(());
    }
    let refuse = |reason: &'static str| Err(Failure::forbidden(reason));
    let Some(body) = document.body.as_object_mut() else { return refuse("A user's document is an object.") };
    let text = |body: &Object, name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    if text(body, "type").as_deref() != Some("user") {
        return refuse("doc.type must be user");
    }
    let Some(name) = text(body, "name").filter(|name| !name.is_empty()) else { return refuse("doc.name is required") };
    if id.strip_prefix(PREFIX) != Some(&name) {
        return refuse("Doc ID must be of the form org.couchdb.user:name");
    }
    // Basic credentials and cookies end a name at a colon.
    if name.contains(':') {
        return refuse("Character `:` is not allowed in usernames.");
    }
    let given = body.get("roles").and_then(Value::as_array).map(<[Value]>::to_vec);
    let Some(given) = given else { return refuse("doc.roles must exist and be an array") };
    if !given.iter().all(|role| role.as_str().is_some()) {
        return refuse("doc.roles can only contain strings");
    }
    let is_admin = served.security().is_admin(user);
    if given.iter().filter_map(Value::as_str).any(|role| role.starts_with('_')) {
        return refuse("No system roles (starting with underscore) in users db.");
    }
    let before = served.database().get(id)?.map(|document| document.value()).transpose()?;
    if !is_admin {
        let known = before.as_ref().and_then(|before| before.get("roles")?.as_array().map(<[Value]>::to_vec));
        if known.unwrap_or_default() != given {
            return refuse("Only _admin may edit roles");
        }
    }
    match body.remove("password") {
        Some(Value::String(password)) => Credential::new(&password)?.put(body),
        Some(Value::Null) | None => {}
        Some(_) => return refuse("Password must be a string."),
    }
    let has_scheme = body.contains("password_scheme");
    if has_scheme && Credential::of_user(&Value::Object(body.clone())).is_none() {
        return refuse("The password is kept by a scheme that is not accepted here.");
    }
    Ok(())
}
