//! Sums over all queues of a tenant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use queen_record::ids::Tenant;

use super::oldest::seconds_since;
use super::sampled::{self, Figured};
use crate::api::{CallError, Counts, Label, LabelSummary, Overview, Spread};
use crate::core::Shared;

/// Sums by label, sorted by it; queues without the label are left out.
pub(crate) fn labels(
    shared: &Arc<Shared>,
    tenant: Tenant,
    label: Label,
) -> Result<Vec<LabelSummary>, CallError> {
    let mut sums: BTreeMap<String, LabelSummary> = BTreeMap::new();
    for queue in sampled::all(shared, tenant)? {
        let Some((namespace, task, partitions)) = facts(shared, &queue) else { continue };
        let label = match label {
            Label::Namespace => namespace,
            Label::Task => task,
        };
        if label.is_empty() {
            continue;
        }
        let sum = sums
            .entry(label.clone())
            .or_insert_with(|| LabelSummary { label, ..LabelSummary::default() });
        sum.queues += 1;
        sum.partitions += partitions;
        add(&mut sum.counts, &queue.figures.counts);
    }
    Ok(sums.into_values().collect())
}

/// Namespace, task and number of partitions.
fn facts(shared: &Shared, queue: &Figured) -> Option<(String, String, u64)> {
    let state = shared.state.read();
    let queue = queue.target.queue(&state)?;
    let options = &queue.options;
    Some((options.namespace.clone(), options.task.clone(), queue.partition_count()))
}

/// Everything in one view.
pub(crate) fn overview(shared: &Arc<Shared>, tenant: Tenant) -> Result<Overview, CallError> {
    let figured = sampled::all(shared, tenant)?;
    let now = shared.clock.now();
    let mut view =
        Overview { now, age_seconds: sampled::age_seconds(&figured, now), ..Overview::default() };
    let (mut namespaces, mut tasks) = (BTreeSet::new(), BTreeSet::new());
    let (mut ages, mut lengths) = (Vec::new(), Vec::new());
    for queue in &figured {
        let Some((namespace, task, partitions)) = facts(shared, queue) else { continue };
        view.queues += 1;
        view.partitions += partitions;
        namespaces.insert(namespace);
        tasks.insert(task);
        add(&mut view.counts, &queue.figures.counts);
        if queue.figures.counts.pending > 0 {
            lengths.push(queue.figures.counts.pending);
            ages.extend(queue.figures.oldest.map(|oldest| seconds_since(oldest, now)));
        }
    }
    let named = |labels: &BTreeSet<String>| labels.iter().filter(|label| !label.is_empty()).count();
    (view.namespaces, view.tasks) = (named(&namespaces) as u64, named(&tasks) as u64);
    (view.lag_seconds, view.lag_messages) = (spread(&ages), spread(&lengths));
    Ok(view)
}

fn add(sum: &mut Counts, part: &Counts) {
    sum.total += part.total;
    sum.pending += part.pending;
    sum.processing += part.processing;
    sum.completed += part.completed;
    sum.dead_letter += part.dead_letter;
}

fn spread(values: &[u64]) -> Spread {
    let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
    let mean = sum / (values.len() as u128).max(1);
    Spread {
        mean: u64::try_from(mean).unwrap_or(u64::MAX),
        max: values.iter().copied().max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_over_what_is_there() {
        assert_eq!(spread(&[]), Spread::default());
        assert_eq!(spread(&[1, 4]), Spread { mean: 2, max: 4 });
        assert_eq!(spread(&[u64::MAX; 3]), Spread { mean: u64::MAX, max: u64::MAX });
    }
}
