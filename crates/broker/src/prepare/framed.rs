//! Messages that the caller framed: taken over as they are where nothing has to be added or encrypted.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use queen_model::Refusal;
use queen_planner::push::{PushPart, PushPartItem};
use queen_record::frame::{FrameRef, Frames};
use queen_record::hash::tx_hash;
use queen_record::ids::Tenant;

use super::{Building, Prepared, Split, add, finish, index, note_leaders};
use crate::api::{CallError, FramedGroup, PushItem};

/// Prepares framed groups; `sub` is stamped on every message.
pub(super) fn prepare<'a>(
    mut split: Split<'a>,
    groups: &'a [FramedGroup],
    sub: Option<&str>,
    zstd_level: i32,
) -> Result<Prepared, CallError> {
    let mut groups_of: HashMap<(&str, &str), u32, FixedState> = HashMap::default();
    for group in groups {
        *groups_of.entry((&group.queue, &group.partition)).or_default() += 1;
    }
    let mut places = Vec::new();
    let mut whole: Vec<Option<&FramedGroup>> = Vec::new();
    for group in groups {
        let part = split.part(&group.queue, &group.partition, 0)?;
        let alone = groups_of.get(&(&*group.queue, &*group.partition)) == Some(&1);
        let Some(building) = split.building.get_mut(part as usize) else { continue };
        let as_it_came = (alone && sub.is_none() && !building.sealing.is_due()).then_some(group);
        if whole.len() <= part as usize {
            whole.push(as_it_came);
        }
        let mut frames = Frames::new(&group.frames);
        while let Some(frame) = frames.next() {
            let frame = frame.map_err(|error| Refusal::BadRequest(error.to_string()))?;
            if frame.flags != 0 {
                // Above all no payload that only calls itself encrypted.
                let text = "a frame of a request must have no flags".to_owned();
                return Err(Refusal::BadRequest(text).into());
            }
            places.push((part, index(building.items.len())));
            if as_it_came.is_some() {
                let (hash, id, end) = (tx_hash(frame.transaction_id), frame.id, index(frames.at()));
                building.items.push(PushPartItem { hash, id, end, own_text: false, leader: None });
            } else {
                restamp(building, group, &frame, sub)?;
            }
        }
    }
    let tenant = split.tenant;
    let parts = split.building.into_iter().zip(whole).map(|(building, whole)| match whole {
        Some(group) => taken_over(tenant, building.items, group),
        None => PushPart { ids_are_callers: true, ..finish(tenant, building, zstd_level) },
    });
    Ok(Prepared { parts: parts.collect(), places })
}

/// Frames a message anew, with its own id and texts.
fn restamp(
    building: &mut Building<'_>,
    group: &FramedGroup,
    frame: &FrameRef<'_>,
    sub: Option<&str>,
) -> Result<(), CallError> {
    let item = PushItem {
        queue: &group.queue,
        partition: &group.partition,
        transaction_id: Some(frame.transaction_id),
        payload: frame.data,
        producer_sub: sub,
        trace_id: None,
    };
    add(building, &item, frame.id)
}

/// The caller's own bytes.
fn taken_over(tenant: Tenant, mut items: Vec<PushPartItem>, group: &FramedGroup) -> PushPart {
    if items.len() > 1 {
        note_leaders(&mut items);
    }
    let saves = group.packed.len() < group.frames.len();
    PushPart {
        tenant,
        queue: group.queue.clone(),
        partition: group.partition.clone(),
        items,
        frames: group.frames.clone(),
        packed: saves.then(|| group.packed.clone()),
        ids_are_callers: true,
    }
}
