//! One transaction's changes, with the counts and sums that go with them.

use std::path::Path;

use queen_state::Keyspace;

use crate::delta::{PENDING_KEY, PagesTouched, Pending, SealedChange, batch_key};
use crate::error::StoreError;
use crate::lmdb::{Table, Txn};
use crate::lmdb_store::{lmdb_error, name_of};
use crate::seal::Seals;
use crate::sums::{FORMAT, FORMAT_KEY, SUMS_KEY, Sums};
use crate::table::TableName;

/// A transaction that is being written.
pub(super) struct Writer<'w> {
    path: &'w Path,
    txn: Txn<'w>,
    tables: Vec<(TableName, Table)>,
    seals: &'w Seals,
    sums: Sums,
    touched: PagesTouched,
}

impl<'w> Writer<'w> {
    pub(super) fn begin(
        path: &'w Path,
        mut txn: Txn<'w>,
        seals: &'w Seals,
    ) -> Result<Self, StoreError> {
        let mut tables = Vec::new();
        for name in TableName::all() {
            let table = txn.table(&name_of(name));
            let failed = |error| lmdb_error(path, "open table", Some((name, &[])), error);
            tables.push((name, table.map_err(failed)?));
        }
        let (sums, touched) = (Sums::new(), PagesTouched::default());
        let mut writer = Self { path, txn, tables, seals, sums, touched };
        let meta = TableName::Rows(Keyspace::Meta);
        let damaged = || unsealed(path, meta, SUMS_KEY);
        let stored = writer.get(meta, SUMS_KEY)?.ok_or_else(damaged)?;
        let value = seals.open(meta, SUMS_KEY, stored).ok_or_else(damaged)?.0;
        writer.sums = Sums::decode(value).ok_or_else(damaged)?;
        Ok(writer)
    }

    /// Puts or deletes a row of a keyspace.
    pub(super) fn change(&mut self, change: &SealedChange) -> Result<(), StoreError> {
        self.change_row(change.keyspace.into(), &change.key, change.stored.as_deref())
    }

    /// Puts a batch of changes, without its seal.
    pub(super) fn put_batch(&mut self, number: u64, mut batch: Vec<u8>) -> Result<(), StoreError> {
        let key = batch_key(number);
        self.seals.seal(TableName::Delta, &key, &mut batch);
        self.change_row(TableName::Delta, &key, Some(&batch))
    }

    /// Deletes a batch of changes.
    pub(super) fn delete_batch(&mut self, number: u64) -> Result<(), StoreError> {
        self.change_row(TableName::Delta, &batch_key(number), None)
    }

    /// The bytes of a batch, verified when they are asked for the first time.
    pub(super) fn batch(&self, number: u64, verify: bool) -> Result<&[u8], StoreError> {
        let key = batch_key(number);
        let damaged = || unsealed(self.path, TableName::Delta, &key);
        let stored = self.get(TableName::Delta, &key)?.ok_or_else(damaged)?;
        if verify {
            return Ok(self.seals.open(TableName::Delta, &key, stored).ok_or_else(damaged)?.0);
        }
        stored
            .len()
            .checked_sub(crate::SEAL_LEN)
            .and_then(|len| stored.get(..len))
            .ok_or_else(damaged)
    }

    /// The value of a row in its table.
    pub(super) fn value(
        &self,
        keyspace: Keyspace,
        key: &[u8],
    ) -> Result<Option<&[u8]>, StoreError> {
        let Some(stored) = self.get(keyspace.into(), key)? else { return Ok(None) };
        let opened = self.seals.open(keyspace, key, stored);
        opened
            .map(|(value, _)| Some(value))
            .ok_or_else(|| unsealed(self.path, keyspace.into(), key))
    }

    /// Says which batches count from this transaction on.
    pub(super) fn put_pending(&mut self, pending: Pending) -> Result<(), StoreError> {
        self.put_own(PENDING_KEY, pending.encode())
    }

    /// Says that the file has this build's format.
    pub(super) fn put_format(&mut self) -> Result<(), StoreError> {
        self.put_own(FORMAT_KEY, FORMAT.to_le_bytes().to_vec())
    }

    /// Pages that it has written to, but for branches; about as many as LMDB holds in memory for it.
    pub(super) fn dirty_pages(&self) -> u64 {
        self.touched.pages
    }

    /// Puts the counts and hands the transaction out, to be committed.
    pub(super) fn finish(mut self) -> Result<Txn<'w>, StoreError> {
        self.sums.commit = self.txn.commit_number();
        let sums = self.sums.encode();
        self.put_own(SUMS_KEY, sums)?;
        Ok(self.txn)
    }

    fn change_row(
        &mut self,
        name: TableName,
        key: &[u8],
        stored: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        if let Some(old) = self.get(name, key)? {
            let opened = self.seals.open(name, key, old);
            let (_, checksum) = opened.ok_or_else(|| unsealed(self.path, name, key))?;
            self.sums.subtract(name, checksum);
        }
        let (table, path) = (self.table(name)?, self.path);
        let failed = |operation| move |error| lmdb_error(path, operation, Some((name, key)), error);
        let Some(stored) = stored else {
            return self.txn.delete(table, key).map_err(failed("delete"));
        };
        // What goes to the file is verified once more: memory may fail between the making of a value and here.
        let opened = self.seals.open(name, key, stored);
        let (_, checksum) = opened.ok_or_else(|| unsealed(path, name, key))?;
        self.sums.add(name, checksum);
        self.touched.add(name, key, stored.len());
        self.txn.put(table, key, stored).map_err(failed("put"))
    }

    /// Puts a row of the store itself, which is not counted.
    fn put_own(&mut self, key: &[u8], mut value: Vec<u8>) -> Result<(), StoreError> {
        let meta = TableName::Rows(Keyspace::Meta);
        self.seals.seal(meta, key, &mut value);
        let (table, path) = (self.table(meta)?, self.path);
        let put = self.txn.put(table, key, &value);
        put.map_err(|error| lmdb_error(path, "put", Some((meta, key)), error))
    }

    fn get(&self, name: TableName, key: &[u8]) -> Result<Option<&[u8]>, StoreError> {
        let got = self.txn.get(self.table(name)?, key);
        got.map_err(|error| lmdb_error(self.path, "get", Some((name, key)), error))
    }

    fn table(&self, name: TableName) -> Result<Table, StoreError> {
        let found = self.tables.iter().find(|(known, _)| *known == name);
        found.map(|(_, table)| *table).ok_or_else(|| unsealed(self.path, name, &[]))
    }
}

/// Damage of a row that is not what was sealed.
pub(super) fn unsealed(path: &Path, table: TableName, key: &[u8]) -> StoreError {
    let reason = "has a row that fails its checksum".to_owned();
    StoreError::row_damage(path, table, key, reason)
}
