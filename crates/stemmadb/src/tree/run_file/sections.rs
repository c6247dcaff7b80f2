//! The sections of a run file, to change them and seal them again, for tests and fuzzing.

use super::*;

/// The sections of a run file, without their checksums. Blocks are as they are stored.
#[derive(Debug, Clone)]
pub(in crate::tree) struct Sections {
    pub(in crate::tree) blocks: Vec<Vec<u8>>,
    /// The encoding of each block.
    pub(in crate::tree) encodings: Vec<u8>,
    pub(in crate::tree) fences: Vec<Vec<u8>>,
    pub(in crate::tree) filter: Vec<u8>,
    pub(in crate::tree) index: Vec<u8>,
    pub(in crate::tree) properties: Vec<u8>,
}

impl Sections {
    /// The sections of a valid file.
    pub(in crate::tree) fn of(bytes: &[u8]) -> Self {
        let footer = bytes.len() - FOOTER_BYTES;
        let property_bytes = u32::from_le_bytes(bytes[footer..footer + 4].try_into().unwrap()) as usize;
        let properties_start = footer - TRAILER_BYTES - property_bytes;
        let properties = &bytes[properties_start..][..property_bytes];
        let mut input = properties;
        let mut number = || varint::read(&mut input).unwrap();
        let (filter_bytes, index_bytes) = (number() as usize, number() as usize);
        let (_, _, block_count) = (number(), number(), number());
        let index_start = properties_start - TRAILER_BYTES - index_bytes;
        let filter_start = index_start - TRAILER_BYTES - filter_bytes;
        let index = &bytes[index_start..][..index_bytes];
        let decoded = BlockIndex::decode(index, block_count, filter_start as u64).unwrap();
        let block = |block: &BlockLocation| bytes[block.offset as usize..][..block.byte_count as usize].to_vec();
        let encoding = |block: &BlockLocation| bytes[block.offset as usize + block.byte_count as usize];
        Sections {
            encodings: decoded.blocks.iter().map(encoding).collect(),
            blocks: decoded.blocks.iter().map(block).collect(),
            fences: (0..decoded.block_count()).map(|block| decoded.fence(block).to_vec()).collect(),
            filter: bytes[filter_start..][..filter_bytes].to_vec(),
            index: index.to_vec(),
            properties: properties.to_vec(),
        }
    }

    /// Makes the index say where the blocks are.
    pub(in crate::tree) fn rebuild_index(&mut self) {
        self.index.clear();
        let mut previous: &[u8] = &[];
        for (fence, block) in self.fences.iter().zip(&self.blocks) {
            let shared = common_prefix(previous, fence);
            varint::write(shared as u64, &mut self.index);
            varint::write((fence.len() - shared) as u64, &mut self.index);
            self.index.extend_from_slice(&fence[shared..]);
            varint::write(block.len() as u64, &mut self.index);
            previous = fence;
        }
    }

    /// Makes the properties say what `record` does.
    pub(in crate::tree) fn rebuild_properties(&mut self, record: &FileRecord) {
        self.properties.clear();
        let lengths = [self.filter.len() as u64, self.index.len() as u64];
        let counts = [record.entry_count, record.tombstone_count, self.blocks.len() as u64];
        lengths.into_iter().chain(counts).for_each(|number| varint::write(number, &mut self.properties));
        for key in [&record.first_key, &record.last_key] {
            varint::write(key.len() as u64, &mut self.properties);
            self.properties.extend_from_slice(key);
        }
    }

    /// The file `record.number` with these sections and right checksums; sets those of `record`.
    pub(in crate::tree) fn seal(&self, record: &mut FileRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut last = 0;
        let encodings = self.encodings.iter().copied().chain([PLAIN; 3]);
        for (section, encoding) in
            self.blocks.iter().chain([&self.filter, &self.index, &self.properties]).zip(encodings)
        {
            last = checksum(record.number, bytes.len() as u64, section, encoding);
            bytes.extend_from_slice(section);
            bytes.push(encoding);
            bytes.extend_from_slice(&last.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.properties.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(MAGIC);
        (record.checksum, record.byte_count) = (last, bytes.len() as u64);
        bytes
    }
}
