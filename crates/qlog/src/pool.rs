//! A few threads that sync files, so that one group's logs are flushed side by side.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};
use queen_io::DiskFile;

struct Job {
    slot: usize,
    file: Arc<dyn DiskFile>,
    done: Sender<(usize, io::Result<()>)>,
}

/// Threads start with the first group that needs them and end with the pool.
pub(crate) struct SyncPool {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl SyncPool {
    /// A pool of `count` threads; 0 runs everything on the caller.
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        if count == 0 {
            return Ok(Self { jobs: None, threads: Vec::new() });
        }
        let (jobs, queue) = bounded::<Job>(count * 4);
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let queue = queue.clone();
            let body = move || {
                for job in queue {
                    let result = job.file.sync_data();
                    // A caller that has gone needs no answer.
                    drop(job.done.send((job.slot, result)));
                }
            };
            threads.push(std::thread::Builder::new().name(format!("fsync-{number}")).spawn(body)?);
        }
        Ok(Self { jobs: Some(jobs), threads })
    }

    /// Syncs every file, the first one on the calling thread; results in the order of `files`.
    pub(crate) fn sync(&self, files: &[Arc<dyn DiskFile>]) -> Vec<io::Result<()>> {
        let Some((first, others)) = files.split_first() else { return Vec::new() };
        let Some(jobs) = self.jobs.as_ref().filter(|_| !others.is_empty()) else {
            return files.iter().map(|file| file.sync_data()).collect();
        };
        let mut results: Vec<io::Result<()>> = files.iter().map(|_| Err(lost())).collect();
        let (done, answers) = bounded(others.len());
        for (slot, file) in others.iter().enumerate() {
            let job = Job { slot: slot + 1, file: file.clone(), done: done.clone() };
            if jobs.send(job).is_err() {
                return results;
            }
        }
        drop(done);
        if let Some(result) = results.first_mut() {
            *result = first.sync_data();
        }
        for (slot, answer) in answers {
            if let Some(result) = results.get_mut(slot) {
                *result = answer;
            }
        }
        results
    }
}

fn lost() -> io::Error {
    io::Error::other("the sync thread is gone")
}

impl Drop for SyncPool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}
