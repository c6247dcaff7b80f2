//! Topologies: several databases and the replications that join them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::background::{BackgroundReplication, ReplicationStatus};
use super::peer::{Peer, ReplicationScope};
use crate::revision::Sequence;
use crate::{Error, Result};

/// How long one of several replications is waited for.
const WAIT: Duration = Duration::from_millis(20);

/// Databases, known by names, and the replications between them.
///
/// A document may reach a database on several ways: its revisions are copied once. Start it with [`Topology::start`].
///
/// ```
/// # use std::{collections::BTreeMap, sync::Arc, time::Duration};
/// # use stemmadb::Database;
/// # use stemmadb::replication::{Peer, Topology};
/// # fn main() -> stemmadb::Result<()> {
/// let databases: BTreeMap<&str, Database> =
///     ["phone", "laptop", "server"].map(|name| (name, Database::in_memory())).into_iter().collect();
/// let topology = Topology::chain(["phone", "laptop", "server"])?.both_ways();
/// assert_eq!(topology.edges().len(), 4);
///
/// let running = topology.start(|name| Ok(Arc::new(databases[name].clone()) as Arc<dyn Peer>))?;
/// databases["phone"].insert("solaris", &serde_json::json!({"year": 1961}))?;
/// let mut changes = databases["server"].subscribe(stemmadb::Sequence::ZERO);
/// assert!(changes.next_within(Duration::from_secs(30))?.is_some());
/// running.stop();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    nodes: Vec<String>,
    edges: Vec<TopologyEdge>,
}

/// A replication of a [`Topology`], from one of its databases to another one.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TopologyEdge {
    /// The name of the database whose documents are copied.
    pub source: String,
    /// The name of the database to which they are copied.
    pub target: String,
    /// Which documents are copied.
    pub scope: ReplicationScope,
}

/// The replications of a [`Topology`], each on a thread of its own. Dropping it stops them.
pub struct RunningTopology {
    running: Vec<(TopologyEdge, BackgroundReplication)>,
}

impl Topology {
    /// Databases without replications. Add these with [`Topology::edge`].
    ///
    /// # Errors
    /// `Invalid` if a name is empty or given twice.
    pub fn new(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let nodes: Vec<String> = nodes.into_iter().map(Into::into).collect();
        for (at, name) in nodes.iter().enumerate() {
            if name.is_empty() {
                return Err(Error::invalid("a database of a topology needs a name"));
            }
            if nodes[..at].contains(name) {
                return Err(Error::invalid(format!("the topology has two databases named {name:?}")));
            }
        }
        Ok(Topology { nodes, edges: Vec::new() })
    }

    /// Each database replicates to the next one.
    ///
    /// # Errors
    /// `Invalid` if there are fewer than two databases, or a name is empty or given twice.
    pub fn chain(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        Self::new(nodes)?.joined(2, |count| (1..count).map(|at| (at - 1, at)).collect())
    }

    /// A chain whose last database replicates to the first one.
    ///
    /// # Errors
    /// As [`Topology::chain`].
    pub fn ring(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        Self::new(nodes)?.joined(2, |count| (0..count).map(|at| (at, (at + 1) % count)).collect())
    }

    /// Each database replicates to every other one.
    ///
    /// # Errors
    /// As [`Topology::chain`].
    pub fn group(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let pairs = |count| (0..count).flat_map(move |from| (0..count).map(move |to| (from, to)));
        Self::new(nodes)?.joined(2, |count| pairs(count).filter(|(from, to)| from != to).collect())
    }

    /// The first database replicates to all others.
    ///
    /// # Errors
    /// As [`Topology::chain`].
    pub fn fan_out(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        Self::new(nodes)?.joined(2, |count| (1..count).map(|at| (0, at)).collect())
    }

    /// All other databases replicate to the first one.
    ///
    /// # Errors
    /// As [`Topology::chain`].
    pub fn fan_in(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        Self::new(nodes)?.joined(2, |count| (1..count).map(|at| (at, 0)).collect())
    }

    /// Databases in tiers, the top one first: each database of a tier receives from one of the tier above, whose
    /// databases are assigned in turn. The databases of the top tier replicate to each other.
    ///
    /// # Errors
    /// `Invalid` if there are fewer than two tiers, a tier is empty, or a name is empty or given twice.
    pub fn tiered<N: Into<String>>(tiers: impl IntoIterator<Item = impl IntoIterator<Item = N>>) -> Result<Self> {
        let tiers: Vec<Vec<String>> =
            tiers.into_iter().map(|tier| tier.into_iter().map(Into::into).collect()).collect();
        if tiers.len() < 2 || tiers.iter().any(Vec::is_empty) {
            return Err(Error::invalid("a tiered topology needs two or more tiers, and a database in each"));
        }
        let mut topology = Self::new(tiers.iter().flatten().cloned())?;
        if tiers[0].len() > 1 {
            topology.edges = Self::group(tiers[0].iter().cloned())?.edges;
        }
        for (above, tier) in tiers.iter().zip(&tiers[1..]) {
            for (source, target) in above.iter().cycle().zip(tier) {
                topology.edges.push(TopologyEdge::new(source, target));
            }
        }
        Ok(topology)
    }

    fn joined(mut self, count_min: usize, pairs: impl FnOnce(usize) -> Vec<(usize, usize)>) -> Result<Self> {
        let count = self.nodes.len();
        if count < count_min {
            return Err(Error::invalid(format!("this topology needs {count_min} databases or more, and has {count}")));
        }
        let edges = pairs(count).into_iter().map(|(from, to)| TopologyEdge::new(&self.nodes[from], &self.nodes[to]));
        self.edges = edges.collect();
        Ok(self)
    }

    /// Adds a replication of everything from one database to another one.
    ///
    /// # Errors
    /// `Invalid` if the topology has no database of one of these names, both are the same, or it has that replication.
    pub fn edge(mut self, source: &str, target: &str) -> Result<Self> {
        if let Some(name) = [source, target].into_iter().find(|name| !self.nodes.iter().any(|node| node == name)) {
            return Err(Error::invalid(format!("the topology has no database named {name:?}")));
        }
        if source == target {
            return Err(Error::invalid(format!("{source:?} can't replicate to itself")));
        }
        if self.has_edge(source, target) {
            return Err(Error::invalid(format!("the topology has two replications from {source:?} to {target:?}")));
        }
        self.edges.push(TopologyEdge::new(source, target));
        Ok(self)
    }

    /// Adds the opposite of each replication that has none, of the same documents.
    #[must_use]
    pub fn both_ways(mut self) -> Self {
        for edge in self.edges.clone() {
            if !self.has_edge(&edge.target, &edge.source) {
                self.edges.push(TopologyEdge { source: edge.target, target: edge.source, scope: edge.scope });
            }
        }
        self
    }

    /// Replicates only these documents, everywhere.
    #[must_use]
    pub fn only(mut self, scope: ReplicationScope) -> Self {
        self.edges.iter_mut().for_each(|edge| edge.scope = scope.clone());
        self
    }

    /// Replicates only these documents from `source` to `target`.
    ///
    /// # Errors
    /// `Invalid` if there is no such replication.
    pub fn only_between(mut self, source: &str, target: &str, scope: ReplicationScope) -> Result<Self> {
        let edge = self.edges.iter_mut().find(|edge| edge.source == source && edge.target == target);
        let none = || Error::invalid(format!("the topology has no replication from {source:?} to {target:?}"));
        edge.ok_or_else(none)?.scope = scope;
        Ok(self)
    }

    fn has_edge(&self, source: &str, target: &str) -> bool {
        self.edges.iter().any(|edge| edge.source == source && edge.target == target)
    }

    /// The names of the databases.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// The replications.
    pub fn edges(&self) -> &[TopologyEdge] {
        &self.edges
    }

    /// Starts the replications. `peer` returns the database of a name; it is called for both sides of each replication.
    /// Each replication has a thread and about two megabytes of documents.
    ///
    /// # Errors
    /// Those of `peer`; `Unavailable` if the system has no thread.
    pub fn start(&self, peer: impl FnMut(&str) -> Result<Arc<dyn Peer>>) -> Result<RunningTopology> {
        let mut running = RunningTopology { running: Vec::new() };
        running.change(self, peer)?;
        Ok(running)
    }
}

impl TopologyEdge {
    fn new(source: &str, target: &str) -> Self {
        TopologyEdge { source: source.to_owned(), target: target.to_owned(), scope: ReplicationScope::All }
    }
}

impl RunningTopology {
    /// Changes the topology: replications that it keeps go on, others are stopped, new ones started.
    ///
    /// # Errors
    /// As [`Topology::start`]; what was started already runs on.
    pub fn change(&mut self, topology: &Topology, mut peer: impl FnMut(&str) -> Result<Arc<dyn Peer>>) -> Result<()> {
        self.running.retain(|(edge, _)| topology.edges.contains(edge));
        for edge in &topology.edges {
            if self.running.iter().any(|(running, _)| running == edge) {
                continue;
            }
            let scope = edge.scope.clone();
            let (source, target) = (peer(&edge.source)?, peer(&edge.target)?);
            let started = BackgroundReplication::start(source, target, |replication| replication.only(scope))?;
            self.running.push((edge.clone(), started));
        }
        Ok(())
    }

    /// Each replication, with what it does and its totals since it started.
    pub fn status(&self) -> Vec<(TopologyEdge, ReplicationStatus)> {
        self.running.iter().map(|(edge, running)| (edge.clone(), running.status())).collect()
    }

    /// Waits until `count` of the databases to which `source` replicates have everything up to a sequence of it
    /// durably, at most for `timeout`. Returns the names of those that have, and of the others.
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use stemmadb::Database;
    /// # use stemmadb::replication::{Peer, Topology};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let databases: std::collections::BTreeMap<&str, Database> =
    /// #     ["head", "rome", "oslo"].map(|name| (name, Database::in_memory())).into_iter().collect();
    /// let topology = Topology::fan_out(["head", "rome", "oslo"])?;
    /// let running = topology.start(|name| Ok(Arc::new(databases[name].clone()) as Arc<dyn Peer>))?;
    /// databases["head"].insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let sequence = databases["head"].get("solaris")?.unwrap().sequence();
    /// let (confirmed, missing) = running.wait_for("head", sequence, 2, Duration::from_secs(30));
    /// assert_eq!((confirmed.len(), missing.len()), (2, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_for(
        &self,
        source: &str,
        sequence: Sequence,
        count: usize,
        timeout: Duration,
    ) -> (Vec<String>, Vec<String>) {
        let deadline = Instant::now() + timeout;
        loop {
            let from_source = self.running.iter().filter(|(edge, _)| edge.source == source);
            let (confirmed, missing): (Vec<_>, Vec<_>) =
                from_source.partition(|(_, running)| running.wait_for(sequence, Duration::ZERO));
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some((_, running)) = missing.first()
                && confirmed.len() < count
                && !left.is_zero()
            {
                // Briefly: another one may be earlier.
                running.wait_for(sequence, left.min(WAIT));
                continue;
            }
            let names = |edges: Vec<&(TopologyEdge, BackgroundReplication)>| {
                edges.into_iter().map(|(edge, _)| edge.target.clone()).collect()
            };
            return (names(confirmed), names(missing));
        }
    }

    /// Tries again now what waits after a failure.
    pub fn retry_now(&self) {
        self.running.iter().for_each(|(_, running)| running.retry_now());
    }

    /// Stops all replications and waits until their threads have ended.
    pub fn stop(self) {
        drop(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn edges(topology: Result<Topology>) -> String {
        let edges: Vec<String> =
            topology.unwrap().edges().iter().map(|edge| format!("{}{}", edge.source, edge.target)).collect();
        edges.join(" ")
    }

    #[test]
    fn shapes_have_their_edges() {
        let nodes = ["a", "b", "c"];
        assert_eq!(edges(Topology::chain(nodes)), "ab bc");
        assert_eq!(edges(Topology::chain(nodes).map(Topology::both_ways)), "ab bc ba cb");
        assert_eq!(edges(Topology::ring(nodes)), "ab bc ca");
        assert_eq!(edges(Topology::ring(["a", "b"]).map(Topology::both_ways)), "ab ba");
        assert_eq!(edges(Topology::group(nodes)), "ab ac ba bc ca cb");
        assert_eq!(edges(Topology::group(nodes).map(Topology::both_ways)), "ab ac ba bc ca cb");
        assert_eq!(edges(Topology::fan_out(nodes)), "ab ac");
        assert_eq!(edges(Topology::fan_in(nodes)), "ba ca");
        let tiers = [vec!["a", "b"], vec!["c", "d", "e"], vec!["f"]];
        assert_eq!(edges(Topology::tiered(tiers)), "ab ba ac bd ae cf");
        assert_eq!(edges(Topology::new(nodes).unwrap().edge("c", "a")), "ca");
    }

    #[test]
    fn malformed_topologies_are_refused() {
        let none: [&str; 0] = [];
        let refused = [
            (Topology::chain(none), "needs 2 databases or more, and has 0"),
            (Topology::ring(["a"]), "needs 2 databases or more, and has 1"),
            (Topology::group(["a", "b", "a"]), "two databases named \"a\""),
            (Topology::new([""]), "needs a name"),
            (Topology::tiered([["a"]]), "two or more tiers"),
            (Topology::tiered([vec!["a"], vec![]]), "a database in each"),
            (Topology::new(["a", "b"]).unwrap().edge("a", "c"), "no database named \"c\""),
            (Topology::new(["a", "b"]).unwrap().edge("a", "a"), "replicate to itself"),
            (Topology::chain(["a", "b"]).unwrap().edge("a", "b"), "two replications from \"a\" to \"b\""),
            (
                Topology::chain(["a", "b"]).unwrap().only_between("b", "a", ReplicationScope::All),
                "no replication from \"b\" to \"a\"",
            ),
        ];
        for (topology, reason) in refused {
            let error = topology.unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.message().contains(reason), "{error}: {reason}");
        }
    }
}
