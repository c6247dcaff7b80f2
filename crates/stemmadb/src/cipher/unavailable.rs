//! The types of encryption in builds without it: none of them has a value.

use super::{EncryptionKey, Place, Purpose, SALT_BYTES, TAG_BYTES, not_built};
use crate::Result;

#[derive(Debug)]
pub(crate) enum Keyring {}

pub(crate) enum DataKey {}

impl DataKey {
    pub(crate) fn seal(&self, _: Place, _: &[u8], _: &mut [u8]) -> [u8; TAG_BYTES] {
        match *self {}
    }

    pub(crate) fn open(&self, _: Place, _: &[u8], _: &[u8; TAG_BYTES], _: &mut [u8]) -> bool {
        match *self {}
    }
}

impl Keyring {
    pub(crate) fn new(_: &EncryptionKey) -> Result<Self> {
        Err(not_built())
    }

    pub(crate) fn decode(_: &[u8], _: &EncryptionKey) -> Result<Self> {
        Err(not_built())
    }

    pub(crate) fn reload(&self, _: &[u8], _: &EncryptionKey) -> Result<()> {
        match *self {}
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        match *self {}
    }

    pub(crate) fn of_copy(&self) -> Result<Self> {
        match *self {}
    }

    pub(crate) fn active(&self) -> Option<u32> {
        match *self {}
    }

    pub(crate) fn accepts_plain(&self) -> bool {
        match *self {}
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        match *self {}
    }

    pub(crate) fn rewrap(&self, _: &EncryptionKey) -> Result<()> {
        match *self {}
    }

    pub(crate) fn add_key(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn keep_only_active(&self) {
        match *self {}
    }

    pub(crate) fn set_accepts_plain(&self, _: bool) {
        match *self {}
    }

    pub(crate) fn deactivate(&self) {
        match *self {}
    }

    pub(crate) fn new_salt(&self) -> Result<[u8; SALT_BYTES]> {
        match *self {}
    }

    pub(crate) fn data_key(&self, _: u32, _: Purpose, _: [u64; 2], _: &[u8; SALT_BYTES]) -> Result<DataKey> {
        match *self {}
    }

    pub(crate) fn seal_name(&self, _: &[u8; 32]) -> [u8; 32] {
        match *self {}
    }

    pub(crate) fn open_name(&self, _: &[u8; 32]) -> [u8; 32] {
        match *self {}
    }
}
