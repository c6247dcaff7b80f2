//! The library's own test suites, with the log of every database in a real cluster. Without `STEMMA_CASSANDRA`, which
//! names a node of one, they are skipped, and the test says so.
//!
//! The suites are not built again: their programs get logs from this one, over a connection
//! ([`stemmadb::testing::serve_logs`]). Databases in memory have their logs in the cluster, too. `STEMMA_SUITES` names
//! those that run, instead of all of [`SUITES`].

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stemmadb::testing::{LOG_STORAGE_VARIABLE, serve_logs};
use stemmadb_cassandra::{Cluster, ClusterOptions};

/// The suites that run with logs in a cluster.
const SUITES: &[&str] = &[
    "asynchronous",
    "check_beside_sweep",
    "clock",
    "close",
    "collection",
    "compaction",
    "compression",
    "conflict_rules",
    "declared_collection",
    "elements",
    "encryption",
    "expiry",
    "feeds",
    "files",
    "find",
    "history",
    "keys",
    "kill",
    "lock",
    "merged_views",
    "model",
    "program_views",
    "reentry",
    "regressions",
    "replication",
    "schemas",
    "serializability",
    "triggers",
    "update",
    "watch",
];

/// The other suites, each with the reason.
const OTHERS: &[(&str, &[&str])] = &[
    (
        "they damage, cut or exchange the files of a log in its directory",
        &["check", "ciphertexts", "copies", "flips", "golden", "limits", "salvage"],
    ),
    ("their disk fails or loses power: it is a `TestStorage`", &["disk_full", "io_errors"]),
    ("they count system calls, bytes or time of files", &["calm", "file_rates", "long_file", "syscalls"]),
    ("they set a log storage, or open for reading only", &["log_storage", "read_only", "replica"]),
    ("they need another build of the library", &["interleavings"]),
    ("they are about the sources and examples, not about databases", &["dependencies", "examples", "readme", "tidy"]),
];

/// Tests of [`SUITES`] that don't run, by reason.
const SKIPPED: &[(&str, &[&str])] = &[
    (
        "they read, damage or count the files of a log in its directory",
        &[
            "an_idle_database_is_compacted",
            "a_past_whose_files_were_removed_is_refused",
            "changed_frame_header_with_a_right_checksum_is_noticed",
            "compaction_rewrites_everything_after_a_change",
            "content_is_stored_once_and_swept_when_unreferenced",
            "content_of_up_to_64_kib_needs_no_file",
            "contents_lost_during_a_check_are_damage",
            "damage_of_a_history_file_is_reported",
            "damaged_small_content_is_never_returned",
            "handles_hold_a_bounded_number_of_bytes",
            "lost_dictionary_is_an_error_that_names_it",
            "lost_segment_lost_field_names::lost_segment_does_not_affect_documents_in_others",
            "no_file_has_plain_text",
            "rekey_takes_effect_at_once_and_reencrypt_replaces_every_byte",
            "retired_files_are_given_back",
            "segments_of_a_branch_and_its_original_can_not_be_exchanged",
            "small_content_in_files_stays_readable",
            "unreferenced_blobs_are_swept_and_lost_blobs_reported",
        ],
    ),
    (
        "they salvage a directory, or encrypt one in place, which is possible only with the log in it",
        &[
            "compressed_documents_replicate_and_are_salvaged",
            "damaged_encrypted_database_is_salvaged_around_the_damage",
            "encrypting_and_decrypting_keeps_everything",
            "replaced_revisions_of_an_encrypted_database_are_salvaged",
            "salvage_restored_a_deleted_document::deletion_with_a_lost_parent_stays_a_deletion",
            "salvage_restored_a_deleted_document::snapshot_records_are_salvaged",
            "small_content_is_salvaged_once",
        ],
    ),
    (
        "they open for reading only, which is refused with a log in a store",
        &[
            "background_thread_sweeps_also_after_a_restart",
            "each_setting_keeps_everything_and_saves_space",
            "each_wrong_way_of_opening_is_its_own_error",
            "earlier_versions_are_noticed",
            "other_processes_are_locked_out",
            "readers_share_it",
        ],
    ),
    (
        "a tree that can't be read is built again from the log, not refused",
        &["file_of_a_plain_database_is_refused_in_an_encrypted_one"],
    ),
];

#[test]
fn every_suite_of_the_library_runs_or_has_a_reason_not_to() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stemmadb/tests");
    let suite = |path: std::path::PathBuf| {
        let is_suite = path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists();
        is_suite.then(|| path.file_stem().unwrap().to_str().unwrap().to_owned())
    };
    let suites: BTreeSet<_> = directory.read_dir().unwrap().filter_map(|entry| suite(entry.unwrap().path())).collect();
    let others = OTHERS.iter().flat_map(|(_, suites)| suites.iter());
    let named: BTreeSet<_> = SUITES.iter().chain(others).map(|suite| (*suite).to_owned()).collect();
    assert_eq!(suites, named, "the suites of the library, and those that this file names");
}

#[test]
fn suites_pass_with_their_logs_in_the_cluster() {
    let Ok(node) = std::env::var("STEMMA_CASSANDRA") else {
        println!("skipped: STEMMA_CASSANDRA names no node of a cluster");
        return;
    };
    let cluster = Cluster::connect(ClusterOptions::new([node], "stemma_suites")).expect("a cluster");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served_count = Arc::new(AtomicUsize::default());
    let counted = served_count.clone();
    serve_logs(listener, move |name| {
        counted.fetch_add(1, Ordering::Relaxed);
        cluster.log(name)
    });

    let named = std::env::var("STEMMA_SUITES").unwrap_or_default();
    let named: Vec<_> = named.split_whitespace().collect();
    let mut cargo = Command::new(std::env::var_os("CARGO").expect("cargo runs this test"));
    // The variables that cargo sets for this test are none of those that it was started with: build scripts would run
    // again.
    let of_this_test = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix)).then(|| name.to_owned())
    };
    for name in std::env::vars_os().filter_map(|(name, _)| of_this_test(name.to_str()?)) {
        cargo.env_remove(name);
    }
    cargo.args(["test", "--locked", "--no-fail-fast"]);
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    for suite in if named.is_empty() { SUITES } else { &named } {
        assert!(SUITES.contains(suite), "STEMMA_SUITES: {suite} is none of {SUITES:?}");
        cargo.args(["--test", suite]);
    }
    cargo.args(["--", "--exact"]);
    for (reason, tests) in SKIPPED {
        println!("skipped because {reason}: {}", tests.join(", "));
        cargo.args(tests.iter().flat_map(|test| ["--skip", *test]));
    }
    let status = cargo.env(LOG_STORAGE_VARIABLE, address).status().expect("cargo runs");
    assert!(status.success(), "the suites named above failed");
    let served_count = served_count.load(Ordering::Relaxed);
    assert!(served_count > 0, "no suite has opened a log in the cluster");
    println!("the suites have opened logs in the cluster {served_count} times");
}
