//! Whether a change may be made, by what the leader knows: one page of rules, without effect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::ChangeMembers;

use super::super::member::{MemberView, View};
use super::super::types::Member;
use super::{Change, NotChanged, not};

/// What a change is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Entries that a learner may be behind when it becomes a voter.
    pub(crate) promote_lag_max: u64,
    /// A member that answered within this time is live.
    pub(crate) live_within: Duration,
}

/// What the library is asked for; voters that are none any more are no members either.
pub(super) type Todo = ChangeMembers<u64, Member>;

/// Checks a change against the membership; `None` when there is nothing to do.
pub(super) fn plan(view: &View, change: &Change, rules: Rules) -> Result<Option<Todo>, NotChanged> {
    let checked = Checked::new(view, rules);
    if !view.is_committed {
        return not(
            "in_flight",
            "the last change of the membership is not committed yet: ask again",
        );
    }
    let is_joint = view.voters.len() > 1;
    if is_joint {
        let may_finish =
            matches!(change, Change::SetVoters { voters, .. } if *voters == checked.voters);
        if !may_finish {
            return checked.half_done();
        }
    }
    match change {
        Change::AddLearner { id, at } => checked.add_learner(*id, at),
        Change::Promote { ids, force } => checked.promote(ids, *force),
        Change::SetVoters { voters, .. } if *voters == checked.voters && !is_joint => Ok(None),
        Change::SetVoters { voters, force } => checked.set_voters(voters, *force),
        Change::Remove { id } => checked.remove(*id),
    }
}

/// A membership that is looked at.
struct Checked<'a> {
    view: &'a View,
    rules: Rules,
    /// Who votes, or will when a change is done.
    voters: BTreeSet<u64>,
    members: BTreeMap<u64, &'a MemberView>,
}

impl<'a> Checked<'a> {
    fn new(view: &'a View, rules: Rules) -> Self {
        let voters = view.voters.last().into_iter().flatten().copied().collect();
        let members = view.members.iter().map(|member| (member.node, member)).collect();
        Self { view, rules, voters, members }
    }

    fn half_done(&self) -> Result<Option<Todo>, NotChanged> {
        let list: Vec<String> = self.voters.iter().map(u64::to_string).collect();
        not(
            "in_flight",
            format!(
                "a change is half done: finish it with PUT /api/v1/system/raft/membership/voters {{\"voters\":[{}]}}",
                list.join(",")
            ),
        )
    }

    fn add_learner(&self, id: u64, at: &Member) -> Result<Option<Todo>, NotChanged> {
        match self.members.get(&id) {
            Some(member) if member.is_voter => {
                not("already_voter", format!("node {id} is a voter already"))
            }
            Some(member) if (&member.at.raft, &member.at.http) == (&at.raft, &at.http) => Ok(None),
            Some(member) => not(
                "address_mismatch",
                format!("node {id} is a learner at {}: remove it first", member.at),
            ),
            None => Ok(Some(ChangeMembers::AddNodes([(id, at.clone())].into()))),
        }
    }

    fn promote(&self, ids: &BTreeSet<u64>, force: bool) -> Result<Option<Todo>, NotChanged> {
        if ids.is_empty() {
            return not("bad_request", "nothing to promote: name the learners in \"ids\"");
        }
        let new: BTreeSet<u64> = ids.difference(&self.voters).copied().collect();
        for id in &new {
            let Some(member) = self.members.get(id) else {
                return not(
                    "not_a_learner",
                    format!("node {id} is no member: add it as a learner first"),
                );
            };
            self.check_caught_up(member, force)?;
        }
        if new.is_empty() {
            return Ok(None);
        }
        let after = self.voters.union(&new).copied().collect();
        self.check_majorities(&after)?;
        self.check_met(new.iter())?;
        Ok(Some(ChangeMembers::AddVoterIds(new)))
    }

    fn set_voters(&self, wanted: &BTreeSet<u64>, force: bool) -> Result<Option<Todo>, NotChanged> {
        if wanted.is_empty() {
            return not("last_voter", "a cluster needs a voter");
        }
        for id in wanted.difference(&self.voters) {
            let Some(member) = self.members.get(id) else {
                return not(
                    "not_a_member",
                    format!("node {id} is no member: add it as a learner first"),
                );
            };
            self.check_caught_up(member, force)?;
        }
        self.check_majorities(wanted)?;
        self.check_met(wanted.difference(&self.voters))?;
        Ok(Some(ChangeMembers::ReplaceAllVoters(wanted.clone())))
    }

    fn remove(&self, id: u64) -> Result<Option<Todo>, NotChanged> {
        let Some(member) = self.members.get(&id) else { return Ok(None) };
        if !member.is_voter {
            return Ok(Some(ChangeMembers::RemoveNodes([id].into())));
        }
        let after: BTreeSet<u64> =
            self.voters.iter().copied().filter(|voter| *voter != id).collect();
        if after.is_empty() {
            return not("last_voter", format!("node {id} is the last voter"));
        }
        self.check_majorities(&after)?;
        Ok(Some(ChangeMembers::RemoveVoters([id].into())))
    }

    fn is_live(&self, member: &MemberView) -> bool {
        member.answered.is_some_and(|age| age <= self.rules.live_within)
    }

    fn check_caught_up(&self, member: &MemberView, force: bool) -> Result<(), NotChanged> {
        let id = member.node;
        let behind =
            |why: String| not("learner_behind", format!("node {id} {why}: ask again later"));
        if force {
            return Ok(());
        }
        let Some(matched) = member.matched else {
            return behind("holds nothing of the log yet".to_owned());
        };
        let lag = self.view.last.0.saturating_sub(matched.0);
        if lag > self.rules.promote_lag_max {
            return behind(format!(
                "is {lag} entries behind, and at most {} are allowed",
                self.rules.promote_lag_max
            ));
        }
        if !self.is_live(member) {
            return behind(format!("has not answered within {:?}", self.rules.live_within));
        }
        Ok(())
    }

    /// Who was never met is sent nothing, and the change that makes it vote could not end.
    fn check_met<'n>(&self, new: impl Iterator<Item = &'n u64>) -> Result<(), NotChanged> {
        let members = new.filter_map(|id| self.members.get(id));
        let Some(member) = members.into_iter().find(|member| member.at.disk.is_none()) else {
            return Ok(());
        };
        let (id, at) = (member.node, &member.at.raft);
        not("learner_behind", format!("node {id} was never reached at {at}: ask again later"))
    }

    fn check_majorities(&self, after: &BTreeSet<u64>) -> Result<(), NotChanged> {
        self.check_majority(&self.voters, "that are")?;
        self.check_majority(after, "that would be")
    }

    fn check_majority(&self, voters: &BTreeSet<u64>, which: &str) -> Result<(), NotChanged> {
        let is_live = |id: &&u64| self.members.get(id).is_some_and(|member| self.is_live(member));
        let (live, needed) = (voters.iter().filter(is_live).count(), voters.len() / 2 + 1);
        if live >= needed {
            return Ok(());
        }
        not(
            "no_quorum",
            format!(
                "{live} of the voters {which} ({voters:?}) are live, {needed} are needed: bring them back first"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use queen_record::ids::EntryIndex;

    use super::super::super::identity::DiskId;
    use super::*;

    const RULES: Rules = Rules { promote_lag_max: 1000, live_within: Duration::from_secs(2) };

    fn at(id: u64) -> Member {
        Member::at(format!("h{id}:7400"), format!("h{id}:6632"))
    }

    /// A leader's view at entry 5000: node 1 leads; the age of an answer in milliseconds, and the last entry held.
    fn view(voters: &[&[u64]], members: &[(u64, Option<u64>, Option<u64>)]) -> View {
        let member = |(node, age, matched): &(u64, Option<u64>, Option<u64>)| MemberView {
            node: *node,
            at: Member { disk: Some(DiskId(u128::from(*node))), ..at(*node) },
            is_voter: voters.iter().any(|set| set.contains(node)),
            matched: matched.map(EntryIndex),
            answered: age.map(Duration::from_millis),
        };
        View {
            node: 1,
            term: 3,
            leader: Some(1),
            is_leader: true,
            voters: voters.iter().map(|set| set.to_vec()).collect(),
            membership_index: Some(EntryIndex(1)),
            is_committed: true,
            last: EntryIndex(5000),
            committed: EntryIndex(5000),
            quorum_age: Some(Duration::ZERO),
            heard: None,
            members: members.iter().map(member).collect(),
        }
    }

    /// Three live voters, and what else is said.
    fn three(others: &[(u64, Option<u64>, Option<u64>)]) -> View {
        let live = |node| (node, Some(2), Some(5000));
        view(&[&[1, 2, 3]], &[&[live(1), live(2), live(3)], others].concat())
    }

    fn promote(ids: &[u64], force: bool) -> Change {
        Change::Promote { ids: ids.iter().copied().collect(), force }
    }

    fn voters(ids: &[u64], force: bool) -> Change {
        Change::SetVoters { voters: ids.iter().copied().collect(), force }
    }

    /// A code, or what the library would be asked for.
    #[expect(clippy::needless_pass_by_value, reason = "the rows of the table read better")]
    fn check(view: &View, change: &Change, expected: Result<Option<Todo>, &str>) {
        let found = plan(view, change, RULES);
        let code = found.as_ref().map_err(|refused| refused.code);
        assert_eq!(code, expected.as_ref().map_err(|code| *code), "{change:?}: {found:?}");
    }

    #[test]
    fn a_learner_is_added_once_and_at_one_address() {
        let view = three(&[(4, None, None)]);
        let add = |id, at| Change::AddLearner { id, at };
        check(&view, &add(5, at(5)), Ok(Some(ChangeMembers::AddNodes([(5, at(5))].into()))));
        check(&view, &add(4, at(4)), Ok(None));
        check(&view, &add(4, at(5)), Err("address_mismatch"));
        check(&view, &add(2, at(2)), Err("already_voter"));
        check(&view, &add(2, at(9)), Err("already_voter"));
    }

    #[test]
    fn a_learner_votes_when_it_has_caught_up_and_answers() {
        let check_one = |age, matched, force, expected: Result<(), &str>| {
            let asked = ChangeMembers::AddVoterIds([4].into());
            let view = three(&[(4, age, matched)]);
            check(&view, &promote(&[4], force), expected.map(|()| Some(asked)));
            let asked = ChangeMembers::ReplaceAllVoters([1, 2, 4].into());
            check(&view, &voters(&[1, 2, 4], force), expected.map(|()| Some(asked)));
        };
        check_one(Some(2000), Some(4000), false, Ok(()));
        check_one(Some(2000), Some(3999), false, Err("learner_behind"));
        check_one(Some(2001), Some(5000), false, Err("learner_behind"));
        check_one(Some(0), None, false, Err("learner_behind"));
        check_one(None, None, false, Err("learner_behind"));
        check_one(None, None, true, Ok(()));
        check_one(Some(0), Some(0), true, Ok(()));
    }

    #[test]
    fn a_learner_that_was_never_reached_does_not_vote() {
        let mut view = three(&[(4, None, None)]);
        view.members[3].at.disk = None;
        for force in [false, true] {
            check(&view, &promote(&[4], force), Err("learner_behind"));
            check(&view, &voters(&[1, 2, 4], force), Err("learner_behind"));
        }
    }

    #[test]
    fn who_is_no_member_is_not_made_one_by_the_way() {
        for force in [false, true] {
            check(&three(&[]), &promote(&[4], force), Err("not_a_learner"));
            check(&three(&[]), &voters(&[1, 2, 4], force), Err("not_a_member"));
        }
        check(&three(&[]), &promote(&[], false), Err("bad_request"));
    }

    #[test]
    fn what_is_so_already_changes_nothing() {
        check(&three(&[]), &promote(&[2, 3], false), Ok(None));
        check(&three(&[]), &voters(&[3, 2, 1], false), Ok(None));
        check(&three(&[]), &Change::Remove { id: 9 }, Ok(None));
    }

    #[test]
    fn a_member_is_removed_altogether() {
        let view = three(&[(4, None, None)]);
        check(&view, &Change::Remove { id: 4 }, Ok(Some(ChangeMembers::RemoveNodes([4].into()))));
        check(&view, &Change::Remove { id: 3 }, Ok(Some(ChangeMembers::RemoveVoters([3].into()))));
        check(&view, &Change::Remove { id: 1 }, Ok(Some(ChangeMembers::RemoveVoters([1].into()))));
    }

    #[test]
    fn somebody_votes() {
        let alone = view(&[&[1]], &[(1, Some(0), Some(5000))]);
        check(&alone, &Change::Remove { id: 1 }, Err("last_voter"));
        check(&three(&[]), &voters(&[], true), Err("last_voter"));
    }

    #[test]
    fn a_majority_is_live_before_and_after() {
        let (live, dead) = (Some(2), Some(9000));
        let one_dead = |learner| {
            let members = [
                (1, live, Some(5000)),
                (2, live, Some(5000)),
                (3, dead, Some(100)),
                (4, learner, Some(5000)),
            ];
            view(&[&[1, 2, 3]], &members)
        };
        // The dead one may go, a live one may not.
        let removed = |id| Ok(Some(ChangeMembers::RemoveVoters([id].into())));
        check(&one_dead(live), &Change::Remove { id: 3 }, removed(3));
        check(&one_dead(live), &Change::Remove { id: 2 }, Err("no_quorum"));
        check(&one_dead(live), &voters(&[1, 3], false), Err("no_quorum"));
        // Four with two dead have no majority, force or not.
        check(
            &one_dead(live),
            &promote(&[4], false),
            Ok(Some(ChangeMembers::AddVoterIds([4].into()))),
        );
        check(&one_dead(dead), &promote(&[4], true), Err("no_quorum"));
        check(&one_dead(dead), &voters(&[1, 4], true), Err("no_quorum"));
        let two_dead =
            view(&[&[1, 2, 3]], &[(1, live, Some(5000)), (2, dead, Some(100)), (3, None, None)]);
        check(&two_dead, &Change::Remove { id: 3 }, Err("no_quorum"));
        check(&two_dead, &voters(&[1], true), Err("no_quorum"));
    }

    #[test]
    fn one_change_at_a_time() {
        let mut open = three(&[(4, Some(0), Some(5000))]);
        open.is_committed = false;
        let every = [
            promote(&[4], true),
            voters(&[1, 2, 3], true),
            Change::Remove { id: 4 },
            Change::AddLearner { id: 5, at: at(5) },
        ];
        for change in &every {
            check(&open, change, Err("in_flight"));
        }
        let live = |node| (node, Some(2), Some(5000));
        let joint = view(&[&[1, 2, 3], &[1, 2, 4]], &[live(1), live(2), live(3), live(4)]);
        for change in &every {
            check(&joint, change, Err("in_flight"));
        }
        let refused = plan(&joint, &every[0], RULES).unwrap_err();
        assert!(refused.text.contains("membership/voters {\"voters\":[1,2,4]}"), "{refused}");
        let finished = ChangeMembers::ReplaceAllVoters([1, 2, 4].into());
        check(&joint, &voters(&[1, 2, 4], false), Ok(Some(finished)));
    }
}
