//! A store in memory whose requests fail, with and without effect, or arrive late.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// A fault of a store. Later requests that change something fail without effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    /// How many requests that change something succeed before.
    pub(super) after: u64,
    /// Whether the request that fails takes effect nevertheless.
    pub(super) takes_effect: bool,
    /// Whether nothing can be read from then on.
    pub(super) hides_objects: bool,
}

#[derive(Default)]
struct State {
    changes: u64,
    fault: Option<Fault>,
    /// Puts of objects whose names contain this fail without effect.
    refused: Option<&'static str>,
    /// Puts of objects whose names contain this are kept, and fail.
    held: Option<&'static str>,
    late: Vec<(Path, PutPayload, PutOptions)>,
    ignores_conditions: bool,
    /// How many puts take effect and fail.
    lost_answers: usize,
}

/// One client of a store in memory.
#[derive(Clone)]
pub(super) struct FaultyStore {
    pub(super) objects: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

impl FaultyStore {
    pub(super) fn new() -> Self {
        FaultyStore { objects: Arc::new(InMemory::new()), state: Arc::default() }
    }

    /// Another client of the same store.
    pub(super) fn another(&self) -> Self {
        FaultyStore { objects: self.objects.clone(), state: Arc::default() }
    }

    pub(super) fn fail(&self, fault: Fault) {
        self.state.lock().fault = Some(fault);
    }

    pub(super) fn refuse(&self, name: &'static str) {
        self.state.lock().refused = Some(name);
    }

    pub(super) fn hold(&self, name: &'static str) {
        self.state.lock().held = Some(name);
    }

    pub(super) fn ignore_conditions(&self) {
        self.state.lock().ignores_conditions = true;
    }

    /// Has this many puts take effect and fail.
    pub(super) fn lose_answers(&self, count: usize) {
        self.state.lock().lost_answers = count;
    }

    /// How many requests have changed something.
    pub(super) fn change_count(&self) -> u64 {
        self.state.lock().changes
    }

    /// Has all puts arrive that were held, and returns how many took effect.
    pub(super) async fn arrive(&self) -> usize {
        let late = std::mem::take(&mut self.state.lock().late);
        let mut count = 0;
        for (path, payload, options) in late {
            count += usize::from(self.objects.put_opts(&path, payload, options).await.is_ok());
        }
        count
    }

    /// The names and sizes of all objects.
    pub(super) async fn all(&self) -> Vec<(String, u64)> {
        let listed = self.objects.list(None).map(|object| object.unwrap());
        listed.map(|object| (object.location.to_string(), object.size)).collect().await
    }

    /// Whether a request that changes something is executed, and whether it succeeds.
    fn change(&self) -> (bool, bool) {
        let mut state = self.state.lock();
        state.changes += 1;
        match &mut state.fault {
            Some(Fault { after: 0, takes_effect, .. }) => (std::mem::take(takes_effect), false),
            Some(fault) => {
                fault.after -= 1;
                (true, true)
            }
            None => (true, true),
        }
    }

    fn check_read(&self) -> Result<()> {
        match self.state.lock().fault {
            Some(Fault { after: 0, hides_objects: true, takes_effect: false }) => Err(injected()),
            _ => Ok(()),
        }
    }
}

fn injected() -> StoreError {
    StoreError::Generic { store: "faulty", source: "injected".into() }
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyStore")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        {
            let mut state = self.state.lock();
            let is_meant = |part: Option<&'static str>| part.is_some_and(|part| path.as_ref().contains(part));
            if is_meant(state.refused) {
                return Err(injected());
            }
            if is_meant(state.held) {
                state.late.push((path.clone(), payload, options));
                return Err(injected());
            }
            if state.ignores_conditions {
                options.mode = PutMode::Overwrite;
            }
        }
        let (takes_effect, succeeds) = self.change();
        let put = match takes_effect {
            true => Some(self.objects.put_opts(path, payload, options).await?),
            false => None,
        };
        let is_lost = {
            let mut state = self.state.lock();
            let is_lost = state.lost_answers > 0;
            state.lost_answers -= usize::from(is_lost);
            is_lost
        };
        put.filter(|_| succeeds && !is_lost).ok_or_else(injected)
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        match self.change() {
            (true, true) => self.objects.put_multipart_opts(path, options).await,
            _ => Err(injected()),
        }
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.check_read()?;
        self.objects.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = move |path: Result<Path>| {
            let this = this.clone();
            async move {
                let path = path?;
                let (takes_effect, succeeds) = this.change();
                if takes_effect {
                    this.objects.delete(&path).await?;
                }
                Some(path).filter(|_| succeeds).ok_or_else(injected)
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.check_read() {
            Ok(()) => self.objects.list(prefix),
            Err(error) => futures_util::stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
