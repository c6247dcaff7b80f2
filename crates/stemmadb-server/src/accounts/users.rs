//! The `_users` database: one document per user, which only that user and administrators can read and change.

use std::sync::Arc;

use hyper::Method;
use parking_lot::Mutex;
use stemmadb::{Sequence, Value};

use crate::auth::password::Costs;
use crate::auth::{Credential, Route, USER_ID_PREFIX, User};
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::spawn_blocking;

/// The account that a user's document describes.
pub(super) struct Account {
    pub(super) roles: Vec<String>,
    pub(super) credential: Credential,
}

/// Reads the account of the user `name`. Blocks for a read.
pub(super) fn account(users: &ServedDatabase, name: &str) -> Result<Option<Account>> {
    let Some(document) = users.database().get(&format!("{USER_ID_PREFIX}{name}"))? else { return Ok(None) };
    let user = document.value()?;
    let is_user = user.get("type").and_then(Value::as_str) == Some("user");
    let is_named = user.get("name").and_then(Value::as_str) == Some(name);
    let credential = Credential::from_user(&user).filter(|_| is_user && is_named);
    Ok(credential.map(|credential| Account { roles: roles(&user), credential }))
}

/// The number of users that are read at once, so that no request waits for a scan of all users.
const READ_COUNT: usize = 1000;

/// The highest cost of verifying the password of any user, as far as the changes feed was read.
#[derive(Debug, Default)]
pub(super) struct HighestCosts {
    read: Sequence,
    costs: Costs,
    /// Whether a background task reads the rest.
    is_scanning: bool,
}

impl HighestCosts {
    /// Returns the highest costs known so far. Reads some more users, and starts a background task for the rest.
    /// Blocks.
    pub(super) fn now(this: &Arc<Mutex<Self>>, users: Option<Arc<ServedDatabase>>) -> Result<Costs> {
        let mut highest_costs = this.lock();
        let Some(users) = users else { return Ok(highest_costs.costs) };
        if !highest_costs.read_more(&users)? && !std::mem::replace(&mut highest_costs.is_scanning, true) {
            let this = this.clone();
            spawn_blocking(move || {
                // A failure is retried with the next wrong password.
                while matches!(this.lock().read_more(&users), Ok(false)) {}
                this.lock().is_scanning = false;
            });
        }
        Ok(highest_costs.costs)
    }

    /// Reads the next users. Returns whether these were the last.
    fn read_more(&mut self, users: &ServedDatabase) -> Result<bool> {
        // A recreated database starts at sequence zero again.
        let since = if users.database().sequence() < self.read { Sequence::ZERO } else { self.read };
        let changes = users.database().changes(since)?.documents(true).limit(READ_COUNT);
        let newest = changes.last_sequence();
        let mut count = 0;
        for change in changes.run() {
            let change = change?;
            let user = change.document.map(|document| document.value()).transpose()?;
            if let Some(credential) = user.as_ref().and_then(Credential::from_user) {
                self.costs.include(&credential);
            }
            self.read = change.sequence;
            count += 1;
        }
        let is_all = count < READ_COUNT;
        if is_all {
            self.read = newest;
        }
        Ok(is_all)
    }

    #[cfg(test)]
    pub(super) fn with_costs(costs: Costs) -> Self {
        HighestCosts { costs, ..HighestCosts::default() }
    }
}

/// The roles of a user's document, without those reserved for the server, which begin with an underscore.
fn roles(user: &Value) -> Vec<String> {
    let roles = user.get("roles").and_then(Value::as_array).unwrap_or_default();
    roles.iter().filter_map(Value::as_str).filter(|role| !role.starts_with('_')).map(str::to_owned).collect()
}

/// Checks that a user who is not an administrator may use a route of this database: only that of their own document.
///
/// # Errors
/// 401 if the request is anonymous; 404 for another user's document, as if it did not exist; 403 otherwise.
pub(super) fn check_own_document(user: &User, route: &Route, document: Option<&str>) -> Result<()> {
    let Some(name) = &user.name else {
        return Err(Failure::unauthorized("You are not authorized to access this db."));
    };
    let is_document = route.path == "/{db}/{doc}" && matches!(route.method, Method::GET | Method::PUT | Method::DELETE);
    let is_own = document.and_then(|id| id.strip_prefix(USER_ID_PREFIX)) == Some(name);
    match (is_document, is_own) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::missing()),
        (false, _) => Err(Failure::forbidden("You are not allowed to access this db.")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use stemmadb::{Edit, Object};

    use super::*;
    use crate::auth::USERS_DATABASE;
    use crate::auth::password::tests::credential_of;
    use crate::config::Config;
    use crate::directory::Directory;

    #[tokio::test]
    async fn costs_are_read_in_parts() {
        let directory_path = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::open(&Config::new(directory_path.path())).unwrap());
        directory.create(USERS_DATABASE).await.unwrap();
        let users = directory.open_database(USERS_DATABASE).await.unwrap();
        let last = READ_COUNT * 5 / 2;
        let user = |number: usize| {
            let mut body = Object::new();
            credential_of("sha", if number == last { 90 } else { 10 }, 20).put(&mut body);
            let id = stemmadb::DocumentId::new(format!("{USER_ID_PREFIX}{number}")).unwrap();
            Edit::Insert { id, body: body.into() }
        };
        let written = users.database().bulk((0..=last).map(user).collect()).unwrap();
        assert!(written.iter().all(|written| written.is_ok()));
        let costs_of = |numbers: &[usize]| {
            let mut costs = Costs::default();
            numbers.iter().for_each(|rounds| costs.include(&credential_of("sha", *rounds as u32, 20)));
            costs
        };
        let mut highest_costs = HighestCosts::default();
        let parts: Vec<_> = (0..3).map(|_| (highest_costs.read_more(&users).unwrap(), highest_costs.costs)).collect();
        assert_eq!(parts, [(false, costs_of(&[10])), (false, costs_of(&[10])), (true, costs_of(&[90]))]);
        // A call returns the costs known so far, while the rest is read in the background.
        let highest_costs = Arc::new(Mutex::new(HighestCosts::default()));
        assert_eq!(HighestCosts::now(&highest_costs, Some(users.clone())).unwrap(), costs_of(&[10]));
        let begun = Instant::now();
        while highest_costs.lock().is_scanning {
            assert!(begun.elapsed() < Duration::from_secs(60), "the rest is not read");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(highest_costs.lock().costs, costs_of(&[90]));
        directory.close();
    }
}
