// Package move carries out one move of one guest, or of a few guests that make
// room for each other: it claims their room, moves their vCPUs, copies their
// memory in turns, narrows their limits and reads back the truth.
//
// A move is a state machine. Its state is in the journal, so that any process
// can take over what another one left:
//
//	state        journal entry    enters when                         leaves to
//	planned      (none)           Move is called                      begun; refused (ErrStale, ErrBusy: nothing was
//
// touched) begun move-began guests are claimed copying; rolling back where a first step
// is refused
//
//	copying      move-step        vCPUs are on their new nodes        done; partial; stopped; rolling back
//
// stopped move-step the context ended, or a step copying (Recover); rolling back where its room is
//
//	(no end)         failed for the first time           gone, or where a step fails again
//
// rolling back move-undoing ErrUndo is the cause, or see above undone; failed; stopped (Recover goes on with it)
//
//	done         move-done        all is in place and verified        -
//	partial      move-partial     some pages or guests are missing    -
//	undone       move-undone      all is back and verified            -
//	failed       move-failed      the guests ended, or not all        -
//	                              came back
//
// Every transition is safe against kill -9: claims end with their process, and
// a beginning without an end is found by Recover, which measures what is in
// place before it goes on. Undo takes a move back that was done before, by the
// same way back.
//
// Files: move.go begins a move, run.go carries it out, pacer.go sets the speed
// of copying, rollback.go finds the way back, recover.go takes over what was cut
// short, stale.go compares a plan with the host, journal.go records and
// reports, undo.go takes back what was done.
package move
