//! What the shards of a virtual database obey although each has only some of its documents: the `_security`, and all
//! design documents with validation functions or indexes.
//!
//! Shards on this server are given it, and those on others get it with the first request that needs it. Design
//! documents are written through this server only, so they are read again after such a write, before the next request.
//! Those of other servers are also recorded here: a server that does not answer makes no write of another one
//! unvalidated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::Method;
use parking_lot::RwLock;
use serde_json::json;
use stemmadb::Value;
use stemmadb_http::url::encode_id;
use tokio::time::Instant;

use super::remote::{RemoteShard, Shard, VirtualRecord};
use super::{EnteredVirtual, OpenVirtual};
use crate::design::{Validators, document_json, is_shared, shared_designs};
use crate::directory::{ServedDatabase, WholeDatabase};
use crate::error::Result;
use crate::http::{blocking, server_runtime};
use crate::mango::{ListedIndex, indexes_in, sync_indexes, sync_indexes_later};

/// How long design documents of a server that did not answer are not asked for again.
const RETRY_WAIT: Duration = Duration::from_secs(10);

/// What the shards of an open virtual database obey.
pub(super) struct SharedRules {
    record: VirtualRecord,
    current: RwLock<Arc<SharedWhole>>,
    generation: AtomicU64,
    /// Design documents on other servers that are being written.
    design_writes: AtomicUsize,
    /// Whether design documents may have changed since they were read.
    is_stale: AtomicBool,
    /// Held while they are read; the time of the last attempt that failed.
    reading: tokio::sync::Mutex<Option<Instant>>,
}

/// A version of what the shards obey.
pub(crate) struct SharedWhole {
    pub(super) whole: Arc<WholeDatabase>,
    /// Greater in each later version.
    pub(super) generation: u64,
}

/// A write of a design document to another server, until it is dropped.
pub(crate) struct DesignWrite(Arc<OpenVirtual>);

impl Drop for DesignWrite {
    fn drop(&mut self) {
        self.0.rules.is_stale.store(true, Ordering::Release);
        self.0.rules.design_writes.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SharedRules {
    /// Nothing but the `_security` is known until the design documents are read.
    pub(super) fn new(record: VirtualRecord, own: &ServedDatabase) -> Self {
        let whole = Arc::new(WholeDatabase::new(own.name(), own.own_security(), Vec::new()));
        SharedRules {
            record,
            current: RwLock::new(Arc::new(SharedWhole { whole, generation: 0 })),
            generation: AtomicU64::new(0),
            design_writes: AtomicUsize::new(0),
            is_stale: AtomicBool::new(true),
            reading: tokio::sync::Mutex::default(),
        }
    }
}

impl OpenVirtual {
    /// What the shards obey.
    pub(crate) fn shared_whole(&self) -> Arc<SharedWhole> {
        self.rules.current.read().clone()
    }

    /// Gives the shards on this server what they obey.
    pub(super) fn share(&self) {
        let shared = self.shared_whole();
        for served in self.shards.read().values().filter_map(Shard::here) {
            let is_known = served.whole().is_some_and(|known| known.version == shared.whole.version);
            if !is_known {
                served.set_whole(shared.whole.clone());
                sync_indexes_later(served.clone());
            }
        }
        for remote in self.shards.read().values().filter_map(Shard::there) {
            let (remote, shared) = (remote.clone(), shared.clone());
            server_runtime().spawn(async move {
                // A server that does not answer gets it with a later request.
                remote.share(&shared).await.ok();
            });
        }
    }

    /// The Mango indexes of all design documents.
    pub(crate) fn indexes(&self) -> Vec<ListedIndex> {
        self.shared_whole().whole.designs.iter().flat_map(|design| indexes_in(design, false)).collect()
    }

    /// Reads what has changed in design documents, and builds the indexes of all shards on this server. Those on
    /// others begin to.
    ///
    /// # Errors
    /// 500 if an index can't be built; 503 if a server does not answer.
    pub(crate) async fn sync_indexes(self: &Arc<Self>) -> Result<()> {
        self.refresh_rules().await?;
        let shared = self.shared_whole();
        let shards: Vec<_> = self.shards.read().values().cloned().collect();
        for shard in shards {
            match shard {
                Shard::Here(served) => blocking(move || sync_indexes(&served)).await?,
                Shard::There(remote) => drop(remote.share(&shared).await?),
            }
        }
        Ok(())
    }

    fn set_whole(&self, designs: Vec<Value>) {
        let generation = self.rules.generation.fetch_add(1, Ordering::AcqRel) + 1;
        let whole = Arc::new(WholeDatabase::new(self.own.name(), self.own.own_security(), designs));
        *self.rules.current.write() = Arc::new(SharedWhole { whole, generation });
        self.share();
    }

    /// Lets the shards obey the `_security` that was just set.
    pub(crate) async fn security_changed(&self) {
        let _reading = self.rules.reading.lock().await;
        self.set_whole(self.shared_whole().whole.designs.clone());
    }

    /// Records that a design document is written on another server.
    ///
    /// # Errors
    /// 503 if that can't be stored.
    pub(crate) async fn begin_design_write(self: &Arc<Self>) -> Result<DesignWrite> {
        self.rules.design_writes.fetch_add(1, Ordering::AcqRel);
        let (write, record) = (DesignWrite(self.clone()), self.rules.record.clone());
        blocking(move || record.set_designs_changed()).await?;
        Ok(write)
    }

    /// Reads the design documents of all shards if some may have changed.
    ///
    /// # Errors
    /// 500 if those on this server can't be read.
    pub(super) async fn refresh_rules(self: &Arc<Self>) -> Result<()> {
        let is_changed_here = || {
            let shards = self.shards.read();
            let changed = shards.values().filter_map(Shard::here);
            // Each is asked, which resets it.
            changed.filter(|served| served.extension::<Validators>().take_changed()).count() > 0
        };
        if is_changed_here() {
            self.rules.is_stale.store(true, Ordering::Release);
        }
        if !self.rules.is_stale.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut reading = self.rules.reading.lock().await;
        let is_retried = reading.is_some_and(|failed| failed.elapsed() < RETRY_WAIT);
        if is_retried || !self.rules.is_stale.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let read = self.read_designs().await;
        let is_complete = matches!(read, Ok((_, true)));
        *reading = if is_complete { None } else { Some(Instant::now()) };
        if !is_complete || self.rules.design_writes.load(Ordering::Acquire) > 0 {
            self.rules.is_stale.store(true, Ordering::Release);
        }
        let (designs, _) = read?;
        if designs != self.shared_whole().whole.designs || self.rules.generation.load(Ordering::Acquire) == 0 {
            self.set_whole(designs);
        }
        Ok(())
    }

    /// The design documents with validation functions, in the order of their ids, and whether all shards were read: of
    /// a server that does not answer, those that are recorded are used.
    async fn read_designs(self: &Arc<Self>) -> Result<(Vec<Value>, bool)> {
        let (record, map) = (self.rules.record.clone(), self.database.map());
        let known = blocking(move || record.designs()).await?;
        let must_read_others = known.as_ref().is_none_or(|(_, are_changed)| *are_changed);
        let known = known.map(|(designs, _)| designs).unwrap_or_default();
        let (mut designs, mut is_complete) = (Vec::new(), true);
        let shards: Vec<_> = self.shards.read().clone().into_iter().collect();
        for (name, shard) in shards {
            let Some(index) = map.names().iter().position(|known| *known == name) else { continue };
            let is_owned = |design: &Value| map.shard_of(id_of(design)) == index;
            let recorded = || known.iter().filter(|design| is_owned(design)).cloned().collect::<Vec<_>>();
            let read = match &shard {
                Shard::Here(served) => {
                    let served = served.clone();
                    blocking(move || shared_designs(&served)).await?
                }
                Shard::There(_) if !must_read_others => recorded(),
                Shard::There(remote) => match remote.shared_designs().await {
                    Ok(read) => read,
                    Err(failure) => {
                        let own = self.own.name();
                        tracing::warn!(target: "stemma::database", "design documents of {name} of {own}: {failure}");
                        is_complete = false;
                        recorded()
                    }
                },
            };
            designs.extend(read.into_iter().filter(is_owned));
        }
        designs.sort_by(|one, other| id_of(one).cmp(id_of(other)));
        let (record, stored) = (self.rules.record.clone(), designs.clone());
        let are_changed = !is_complete || self.rules.design_writes.load(Ordering::Acquire) > 0;
        if stored != known || must_read_others {
            blocking(move || record.set_designs(&stored, are_changed)).await?;
        }
        Ok((designs, is_complete))
    }

    /// Reads the design documents again before the next request, also those of other servers.
    ///
    /// # Errors
    /// 503 if that can't be stored.
    pub(super) async fn forget_designs(self: &Arc<Self>) -> Result<()> {
        drop(self.begin_design_write().await?);
        Ok(())
    }
}

impl EnteredVirtual {
    /// A design document, without `_design/` in its name, as its functions receive documents.
    ///
    /// # Errors
    /// 404 if there is none; 503 if its server does not answer.
    pub(crate) async fn design(&self, name: &str) -> Result<Value> {
        let id = format!("_design/{name}");
        // Of the newest state, also for a read of the past.
        match self.open.layout().shard_of(&id) {
            Shard::Here(served) => {
                let name = name.to_owned();
                blocking(move || {
                    let design = crate::design::open(&served.database().snapshot()?, &name)?;
                    Ok(Value::parse(document_json(&served, &design)?.as_bytes())?)
                })
                .await
            }
            Shard::There(remote) => {
                let (_, design) = remote.ask(Method::GET, &format!("/{}", encode_id(&id)), None, None).await?;
                Ok(Value::parse(&design)?)
            }
        }
    }
}

fn id_of(design: &Value) -> &str {
    design.get("_id").and_then(Value::as_str).unwrap_or_default()
}

impl RemoteShard {
    /// The design documents that all shards have to know.
    async fn shared_designs(&self) -> Result<Vec<Value>> {
        let (_, answer) = self.ask(Method::GET, "/_design_docs?include_docs=true", None, None).await?;
        let answer = Value::parse(&answer)?;
        let rows = answer.get("rows").and_then(Value::as_array).unwrap_or_default().iter();
        Ok(rows.filter_map(|row| row.get("doc").filter(|design| is_shared(design)).cloned()).collect())
    }

    /// Gives the shard what it obeys, unless it has it; returns the version that requests name.
    ///
    /// # Errors
    /// As [`RemoteShard::ask`].
    pub(crate) async fn share(&self, shared: &SharedWhole) -> Result<String> {
        let mut given = self.given.lock().await;
        match given.as_ref() {
            Some((generation, version)) if *generation >= shared.generation => return Ok(version.clone()),
            Some((_, version)) if *version == shared.whole.version => {}
            _ => self.mark(&shared.whole).await?,
        }
        *given = Some((shared.generation, shared.whole.version.clone()));
        Ok(shared.whole.version.clone())
    }

    /// Gives the shard what it obeys again at the next request.
    pub(crate) async fn forget_given(&self) {
        *self.given.lock().await = None;
    }
}

impl VirtualRecord {
    /// The design documents with validation functions that were read last, and whether they may have changed since
    /// then. Blocks.
    fn designs(&self) -> Result<Option<(Vec<Value>, bool)>> {
        let stored = self.read(DESIGNS)?;
        Ok(stored.map(|stored| {
            let text = stored.get("designs").and_then(Value::as_str);
            let designs = text.and_then(|text| Value::parse(text.as_bytes()).ok());
            match designs {
                Some(Value::Array(designs)) => (designs, stored.get("are_changed") != Some(&Value::Bool(false))),
                // They are read from the shards.
                _ => (Vec::new(), true),
            }
        }))
    }

    /// Blocks until that is flushed.
    fn set_designs(&self, designs: &[Value], are_changed: bool) -> Result<()> {
        // As text, because a record does not keep the order of members, such as that of an index's fields.
        let text = Value::Array(designs.to_vec()).to_json();
        self.put(DESIGNS, &json!({"designs": text, "are_changed": are_changed}))
    }

    fn set_designs_changed(&self) -> Result<()> {
        match self.designs()? {
            Some((designs, false)) => self.set_designs(&designs, true),
            _ => Ok(()),
        }
    }
}

/// The kind of the record of design documents.
pub(super) const DESIGNS: &str = "shard_designs";
