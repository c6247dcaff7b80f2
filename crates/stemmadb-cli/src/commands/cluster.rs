//! Membership in a cluster, for `stemma serve --cluster`. Needs the cargo feature `cluster`.

use std::sync::Arc;

use stemmadb::log_storage::ClusterStore;
use stemmadb_server::Config;

use crate::failure::{Failure, Result};

/// Joins the cluster of a configuration; none if it names no nodes. Blocks.
#[cfg(feature = "cluster")]
pub(super) fn join(config: &Config) -> Result<Option<Arc<dyn ClusterStore>>> {
    use stemmadb_cassandra::{Cluster, ClusterOptions};

    use crate::failure::Exit;

    let member = &config.cluster;
    if member.nodes.is_empty() {
        return Ok(None);
    }
    let address = match &member.address {
        Some(address) => address.clone(),
        None if config.address.ip().is_unspecified() || config.address.port() == 0 => {
            return Err(Failure::usage(format!("other servers can't reach {}", config.address))
                .with_hint("--cluster-address gives the URL at which they reach this one: http://10.0.1.1:5984"));
        }
        None => format!("{}://{}", if config.is_encrypted() { "https" } else { "http" }, config.address),
    };
    let options = ClusterOptions::new(&member.nodes, &member.keyspace)
        .replication(u8::try_from(member.replication).unwrap_or(u8::MAX));
    let options = member.translate.iter().try_fold(options, |options, pair| {
        let parsed = pair.split_once('=').and_then(|(known, reached)| known.parse().ok().zip(reached.parse().ok()));
        let invalid = || {
            Failure::usage(format!("cluster.translate: {pair:?} is no pair of addresses"))
                .with_hint("--cluster-translate 10.0.0.1:9042=203.0.113.5:9042")
        };
        parsed.map(|(known, reached)| options.translate(known, reached)).ok_or_else(invalid)
    })?;
    let options = match &member.user {
        Some(user) => options.credentials(user, &member.password),
        None => options,
    };
    let joined = Cluster::connect(options).and_then(|cluster| cluster.join(&address, member.lease));
    let joined = joined.map_err(|error| Failure::new(Exit::Unavailable, format!("joining the cluster: {error}")))?;
    Ok(Some(Arc::new(joined)))
}

/// As with the feature; but there are no clusters.
#[cfg(not(feature = "cluster"))]
pub(super) fn join(config: &Config) -> Result<Option<Arc<dyn ClusterStore>>> {
    match config.cluster.nodes.is_empty() {
        true => Ok(None),
        false => Err(Failure::usage("this build of stemma has no clusters")
            .with_hint("build it with `cargo build --release --features stemmadb-cli/cluster`")),
    }
}
