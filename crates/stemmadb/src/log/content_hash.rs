//! SHA-256 of file content. Builds without the `files` feature have no hash function: they can read files, but not
//! store new ones, and verify content by its checksums alone.

use super::blobs::Digest;

/// Computes a [`Digest`] piece by piece.
#[cfg(feature = "files")]
pub(super) struct ContentHasher(sha2::Sha256);

/// Computes a [`Digest`] piece by piece: never constructed in this build.
#[cfg(not(feature = "files"))]
pub(super) enum ContentHasher {}

#[cfg(feature = "files")]
impl ContentHasher {
    /// Starts a digest; `None` in builds without the `files` feature.
    pub(super) fn new() -> Option<Self> {
        Some(ContentHasher(sha2::Digest::new()))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        sha2::Digest::update(&mut self.0, bytes);
    }

    pub(super) fn finish(self) -> Digest {
        Digest(sha2::Digest::finalize(self.0).into())
    }
}

#[cfg(not(feature = "files"))]
impl ContentHasher {
    pub(super) fn new() -> Option<Self> {
        None
    }

    pub(super) fn update(&mut self, _: &[u8]) {
        match *self {}
    }

    pub(super) fn finish(self) -> Digest {
        match self {}
    }
}
