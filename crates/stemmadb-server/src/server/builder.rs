//! A server with functions of the program.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemmadb::log_storage::ClusterStore;

use super::Server;
use crate::auth::refuse_if_open;
use crate::config::Config;
use crate::error::{Failure, Result};
use crate::functions::{FunctionContext, Functions};

/// A server that is not started yet. Made by [`Server::builder`].
pub struct ServerBuilder {
    config: Config,
    functions: Functions,
    cluster: Option<Arc<dyn ClusterStore>>,
    /// The first function that could not be added.
    failure: Option<Failure>,
}

impl Server {
    /// A server with functions of the program, which clients call over HTTP (`POST /{db}/_function/{name}`) and the
    /// wire protocol (`database.call` of the crate `stemmadb-client`).
    ///
    /// ```no_run
    /// # async fn example() -> stemmadb_server::Result<()> {
    /// use stemmadb::field;
    /// use stemmadb_server::{Config, Server};
    ///
    /// let server = Server::builder(Config::new("databases"))
    ///     .function("books_before", |context, year: u32| context.find(field("year").lt(year)).count())
    ///     .start()
    ///     .await?;
    /// # server.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(config: Config) -> ServerBuilder {
        ServerBuilder { config, functions: Functions::default(), cluster: None, failure: None }
    }
}

impl ServerBuilder {
    /// Adds a function. Its input and output are JSON, converted by serde; input that does not fit is refused with 400
    /// (`Invalid`) before it is called. Errors reach the caller by their kinds, as those of other requests.
    ///
    /// Members of the database may call it, also those whom an access rule restricts: what it reads and writes by the
    /// context is limited to what the caller may do. At most 64 calls run at the same time; a call has no time limit
    /// of its own, but its queries have that of the server (`limits.query_time`).
    #[must_use]
    pub fn function<I, O>(
        mut self,
        name: &str,
        function: impl Fn(&FunctionContext, I) -> stemmadb::Result<O> + Send + Sync + 'static,
    ) -> Self
    where
        I: DeserializeOwned,
        O: Serialize,
    {
        if let Err(failure) = self.functions.add(name, function) {
            self.failure.get_or_insert(failure);
        }
        self
    }

    /// Makes the server a member of a cluster: it serves the databases of the cluster, those that it owns itself, and
    /// the others by passing requests on to their owners. What is in [`Config::directory`] is derived from the logs of
    /// the cluster, and may be lost; the server's own settings are there too.
    #[must_use]
    pub fn cluster(mut self, store: Arc<dyn ClusterStore>) -> Self {
        self.cluster = Some(store);
        self
    }

    /// Starts the server; see [`Server::start`].
    ///
    /// # Errors
    /// Those of [`Server::start`]; 400 if the name of a function is malformed or not unique.
    pub async fn start(self) -> Result<Server> {
        let ServerBuilder { config, functions, cluster, .. } = self.checked()?;
        refuse_if_open(&config, config.address)?;
        Server::open(config, functions, cluster, true).await
    }

    /// Opens the directory without listening; see [`Server::mounted`].
    ///
    /// # Errors
    /// Those of [`Server::mounted`]; 400 if the name of a function is malformed or not unique.
    pub async fn mounted(self) -> Result<Server> {
        let ServerBuilder { config, functions, cluster, .. } = self.checked()?;
        Server::open(config, functions, cluster, false).await
    }

    fn checked(mut self) -> Result<Self> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(self),
        }
    }
}
