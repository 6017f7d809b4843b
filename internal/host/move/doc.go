// Package move carries out one move of one guest, or of a few guests that make
// room for each other: it claims their room, moves their vCPUs and copies their
// memory in the order of package order, narrows their limits and verifies the
// result.
//
// A move is a state machine. Its state is in the journal, so that any process
// can resume the move of another one:
//
//	state         journal entry  entered when                  next
//	planned       (none)         Move is called                begun; refused (ErrStale, ErrBusy:
//	                                                           nothing was touched)
//	begun         move-began     the guests are claimed        copying; rolling back if a first step
//	                                                           fails
//	copying       move-step      the new nodes are allowed     done; partial; stopped; rolling back
//	stopped       move-step      the context ended, or a step  copying (Recover); rolling back if its
//	              (no end)       failed for the first time     resources are taken, or a step fails
//	                                                           again
//	rolling back  move-undoing   the cause is ErrUndo, or as   undone; failed; stopped (Recover
//	                             above                         continues it)
//	done          move-done      all is in place and verified  -
//	partial       move-partial   some pages or guests are      -
//	                             missing
//	undone        move-undone    all is back and verified      -
//	failed        move-failed    the guests ended, or some     -
//	                             are not back
//
// Every transition is safe against kill -9: claims end with their process, and
// Recover finds a beginning without an end and measures what is in place before
// it continues. Undo reverts a completed move by the steps of a rollback.
//
// Files: move.go begins a move, run.go carries it out, order.go sets the order
// of the guests and when their vCPUs move, pacer.go sets the speed of copying,
// trace.go records what a move does in each second, rollback.go plans the
// rollback, recover.go resumes interrupted moves, stale.go compares a plan with
// the host, journal.go records and reports, undo.go reverts completed effects,
// room.go creates a guest that others make room for.
package move
