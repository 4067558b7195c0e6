//! Every interleaving of a planner, two gatherers and a consumer on a small ring.
//!
//! A thread that finds no work goes to sleep, and only [`News`] wakes it. The test visits each reachable state once. In
//! each state, no thread may sleep that could proceed, and no batch may be lost, repeated or out of order.

use std::collections::HashSet;

use super::*;
use crate::batching::plan::BatchRow;

const GATHERERS: usize = 2;
const BATCHES: u64 = 4;
const ROWS: usize = 2;

/// The parameters of the test.
#[derive(Debug, Clone, Copy)]
struct Case {
    lookahead: u64,
    slots: u64,
    /// Whether files are read without a mapping: one check for each of two files.
    is_unmapped: bool,
    /// The batch whose first chunk fails.
    failing: Option<u64>,
    /// Whether the last batch has no rows.
    ends_empty: bool,
    is_warm: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Actor {
    Planner,
    Gatherer(usize),
    Consumer,
}

/// The ring with its threads, as far as the hand-overs are concerned.
struct Model {
    case: Case,
    ring: Ring,
    planned: u64,
    is_planner_done: bool,
    holding: [Option<Claim>; GATHERERS],
    asleep: HashSet<Actor>,
    taken: Vec<bool>,
    is_over: bool,
}

const ACTORS: [Actor; 4] = [Actor::Planner, Actor::Gatherer(0), Actor::Gatherer(1), Actor::Consumer];

impl Model {
    fn new(case: Case) -> Self {
        let layout = BatchLayout {
            rows: ROWS,
            tokens: 8,
            row_bytes: 8,
            y_offset: None,
            position_row_bytes: 0,
            positions_offset: None,
            mask_row_bytes: 0,
            mask_offset: None,
            buffer_bytes: ROWS * 8,
            ahead_bytes: 1,
        };
        // Allocation takes more time than all the rest, so many models share each buffer.
        thread_local!(static POOL: Pool = Pool::new(ROWS * 8, 16));
        let pool = POOL.with(Pool::clone);
        let (lookahead, room) =
            (Budget::new(case.lookahead, case.lookahead), Budget::new(case.slots, 2 * case.slots));
        Self {
            case,
            ring: Ring::new(layout, pool, lookahead, room, true),
            planned: 0,
            is_planner_done: false,
            holding: [None, None],
            asleep: HashSet::new(),
            taken: Vec::new(),
            is_over: false,
        }
    }

    fn plan(&self) -> Planned {
        let row = BatchRow { source: 0, epoch: 0, start: 0, stop: 1 };
        let rows = if self.case.ends_empty && self.planned + 1 == BATCHES { 0 } else { ROWS };
        let plan = BatchPlan { position: self.planned, global_rows: 1, rows: vec![row; rows] };
        Planned { plan: Arc::new(plan), behind: Arc::default() }
    }

    /// One turn of a thread, as in `threads.rs` and `planner.rs`. Returns whether it did anything.
    fn turn(&mut self, actor: Actor) -> bool {
        let went_on = match actor {
            Actor::Planner if self.is_planner_done => return false,
            Actor::Planner => self.turn_of_planner(),
            Actor::Gatherer(number) => self.turn_of_gatherer(number),
            Actor::Consumer if self.is_over => return false,
            Actor::Consumer => self.turn_of_consumer(),
        };
        if !went_on {
            self.asleep.insert(actor);
        }
        self.announce();
        went_on
    }

    fn turn_of_planner(&mut self) -> bool {
        // An awake planner continues while there is space; a sleeping planner waits for more.
        if !self.ring.has_room_for_plans() {
            return false;
        }
        if self.planned == BATCHES {
            self.ring.end(Ok(()));
            self.is_planner_done = true;
        } else {
            self.ring.set_warm(self.case.is_warm);
            let planned = self.plan();
            self.ring.plan(planned);
            self.planned += 1;
        }
        true
    }

    fn turn_of_gatherer(&mut self, number: usize) -> bool {
        if let Some(claim) = self.holding[number].take() {
            let batch = claim.plan.position;
            let outcome = match &claim.work {
                SlotWork::Fill(chunk) if chunk.rows.start == 0 && self.case.failing == Some(batch) => {
                    Err(Error::argument("a chunk that fails"))
                }
                SlotWork::Fill(_) => {
                    let files = (0..2).map(|index| FileId { set: 0, index });
                    let unmapped = files.filter(|_| self.case.is_unmapped).collect();
                    Ok(Filled { waited: true, unmapped, ..Filled::default() })
                }
                SlotWork::Check(_) => Ok(Filled::default()),
            };
            let number = claim.number;
            drop(claim);
            self.ring.finish(number, outcome);
            return true;
        }
        self.holding[number] = self.ring.claim(true);
        self.holding[number].is_some()
    }

    fn turn_of_consumer(&mut self) -> bool {
        match self.ring.take(true) {
            Front::Batch(taken) => {
                assert_eq!(taken.plan.position, self.taken.len() as u64, "in order, each once");
                self.taken.push(taken.buffer.is_ok());
                true
            }
            Front::Pending(_) => false,
            Front::End => {
                self.is_over = true;
                true
            }
            Front::Failed(error) => panic!("{error}"),
        }
    }

    /// Same as `Shared::announce`. The first gatherer wakes, which is the worst case.
    fn announce(&mut self) {
        let News { work, is_ready, has_room } = self.ring.take_news();
        for number in (0..GATHERERS)
            .map(Actor::Gatherer)
            .filter(|actor| self.asleep.contains(actor))
            .take(work)
            .collect::<Vec<_>>()
        {
            self.asleep.remove(&number);
        }
        if is_ready {
            self.asleep.remove(&Actor::Consumer);
        }
        if has_room && self.ring.wants_plans() {
            self.asleep.remove(&Actor::Planner);
        }
    }

    /// Number of unclaimed pieces in begun batches.
    fn unclaimed(&self) -> usize {
        let pieces = self.ring.slots.iter().map(|slot| match &slot.state {
            SlotState::Filling(chunks) => chunks.len(),
            SlotState::Checking(files) => files.len(),
            SlotState::Done(_) => 0,
        });
        pieces.sum()
    }

    /// The state that determines the next steps.
    fn fingerprint(&self) -> String {
        let slots: Vec<_> = self
            .ring
            .slots
            .iter()
            .map(|slot| {
                let state = match &slot.state {
                    SlotState::Filling(chunks) => format!("f{}", chunks.len()),
                    SlotState::Checking(files) => format!("c{}", files.len()),
                    SlotState::Done(Ok(_)) => "ok".into(),
                    SlotState::Done(Err(_)) => "failed".into(),
                };
                (state, slot.open)
            })
            .collect();
        let holding = self.holding.each_ref().map(|claim| {
            claim.as_ref().map(|claim| (claim.number, matches!(claim.work, SlotWork::Check(_))))
        });
        let mut asleep: Vec<_> = self.asleep.iter().map(|actor| format!("{actor:?}")).collect();
        asleep.sort();
        format!(
            "{slots:?} {holding:?} {asleep:?} {} {:?} {} {:?} {}",
            self.planned,
            self.ring.first,
            self.is_planner_done,
            &self.ring.lengths()[..2],
            self.is_over
        )
    }
}

fn replay(case: Case, path: &[Actor]) -> Model {
    let mut model = Model::new(case);
    for actor in path {
        model.turn(*actor);
    }
    model
}

/// Visits every state. Returns their number.
fn explore(case: Case) -> usize {
    let (mut seen, mut open) = (HashSet::new(), vec![Vec::new()]);
    let mut at = None;
    // Follow one successor of each state at once, and the others later.
    while let Some((mut model, path)) =
        at.take().or_else(|| open.pop().map(|path: Vec<Actor>| (replay(case, &path), path)))
    {
        if !seen.insert(model.fingerprint()) {
            continue;
        }
        let awake: Vec<Actor> = ACTORS.into_iter().filter(|actor| !model.asleep.contains(actor)).collect();
        let can_go_on = |actor: &Actor| match actor {
            Actor::Planner => !model.is_planner_done,
            Actor::Consumer => !model.is_over,
            Actor::Gatherer(_) => true,
        };
        if !awake.iter().any(can_go_on) {
            assert!(model.is_over, "all sleep, and the stream is not over: {path:?} {}", model.fingerprint());
            let expected: Vec<bool> = (0..BATCHES).map(|batch| case.failing != Some(batch)).collect();
            assert_eq!(model.taken, expected);
        }
        // A sleeping thread could not do anything. Otherwise it missed its wake-up.
        for actor in ACTORS.into_iter().filter(|actor| model.asleep.contains(actor)) {
            let can_turn = || replay(case, &path).turn(actor);
            let is_lost = match actor {
                Actor::Consumer => can_turn(),
                Actor::Planner => model.ring.wants_plans(),
                // Another awake gatherer may take the work, unless it is busy with a chunk.
                Actor::Gatherer(number) => {
                    let other = 1 - number;
                    let is_other_free =
                        !model.asleep.contains(&Actor::Gatherer(other)) && model.holding[other].is_none();
                    let is_alone = model.asleep.contains(&Actor::Gatherer(other));
                    (is_alone && can_turn()) || model.unclaimed() > usize::from(is_other_free)
                }
            };
            assert!(!is_lost, "{actor:?} sleeps on: {path:?} {}", model.fingerprint());
        }
        let mut ways = awake.into_iter().filter(can_go_on);
        let first = ways.next();
        open.extend(ways.map(|actor| [&*path, &[actor]].concat()));
        if let Some(actor) = first {
            model.turn(actor);
            at = Some((model, [&*path, &[actor]].concat()));
        }
    }
    seen.len()
}

#[test]
fn no_interleaving_loses_a_batch_or_a_wakeup() {
    let mut states = 0;
    for (lookahead, slots) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
        for (is_unmapped, failing) in [(false, None), (true, None), (false, Some(1)), (true, Some(1))] {
            for (ends_empty, is_warm) in [(false, false), (true, false), (false, true)] {
                let case = Case { lookahead, slots, is_unmapped, failing, ends_empty, is_warm };
                states += explore(case);
            }
        }
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn closing_wakes_all_threads_and_leaves_no_work() {
    let case =
        Case { lookahead: 2, slots: 2, is_unmapped: false, failing: None, ends_empty: false, is_warm: false };
    let mut model = replay(case, &[Actor::Planner, Actor::Gatherer(0), Actor::Consumer, Actor::Gatherer(1)]);
    assert!(model.ring.close(None));
    assert!(!model.ring.close(None), "only the first call waits for the threads");
    model.announce();
    assert!(model.asleep.is_empty() || model.asleep == HashSet::from([Actor::Planner]));
    assert!(model.ring.claim(true).is_none());
    assert!(matches!(model.ring.take(false), Front::Failed(_)));
    model.ring.clear();
    model.turn_of_gatherer(0);
}

#[test]
fn lengths_double_only_for_storage_and_reset_once() {
    let layout = Model::new(Case {
        lookahead: 1,
        slots: 1,
        is_unmapped: false,
        failing: None,
        ends_empty: false,
        is_warm: false,
    })
    .ring
    .layout;
    let lengths = |adapts: bool, waited: bool, stalled: bool| {
        let pool = Pool::new(layout.buffer_bytes, 8);
        let mut ring = Ring::new(layout, pool, Budget::new(2, 8), Budget::new(2, 8), adapts);
        let row = BatchRow { source: 0, epoch: 0, start: 0, stop: 1 };
        for position in 0..2 {
            let plan = Arc::new(BatchPlan { position, global_rows: 1, rows: vec![row] });
            ring.plan(Planned { plan, behind: Arc::default() });
            let number = ring.claim(true).map(|claim| claim.number).expect("work");
            ring.finish(number, Ok(Filled { waited, ..Filled::default() }));
            assert!(matches!(ring.take(stalled), Front::Batch(_)));
        }
        let grown = ring.lengths();
        ring.set_warm(true);
        [grown[0], grown[1], ring.lengths()[0], ring.lengths()[1]]
    };
    assert_eq!(lengths(true, true, true), [8, 8, 2, 2]);
    assert_eq!(lengths(true, true, false), [2, 2, 2, 2]);
    assert_eq!(lengths(true, false, true), [2, 2, 2, 2]);
    assert_eq!(lengths(false, true, true), [2, 2, 2, 2]);
}
