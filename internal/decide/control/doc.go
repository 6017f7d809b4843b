// Package control decides what the daemon of one host does: when to observe the
// host, when to plan, which job runs next, what a pause or a maintenance window
// stops, how competitors are answered, what is reported. It is a state machine
// in the manner of etcd-io/raft's RawNode: events go in, one at a time and each
// with its time; a Ready comes out, which the caller carries out. It reads no
// clock, starts no goroutine and does no I/O, so that a test can replay any
// history (see testdata).
//
//	ticker   watcher   observe   jobs   settings   operator   journal
//	   |        |         |        |        |          |         |
//	 Tick    Sampled  Observed  JobEnded SettingChanged Pause  JournalRead
//	   |        |         |     JobProgressed |       Resume.. Appended
//	   +--------+---------+--------+---+----+----------+---------+
//	                                   |
//	                         Controller.Step(now, event)
//	                                   |
//	                                 Ready
//	   +-----------+---------+---------+--------+-----------+----------+
//	   |           |         |         |        |           |          |
//	StopJob     Entries   Observe   StartJob  Remedy      Alarms    Replies
//	(cause)   ReadJournal Follow                                    Facts
//	                      ReadClosely
//
// An order of an operator that must survive a restart (pause, resume, accept)
// is answered in two steps: Ready has its journal entry, marked with the order;
// the caller appends it and reports Appended; the Ready of that event has the
// reply. Orders that need no entry are answered at once.
//
// # States
//
// At each sample the controller is in one of these states, the first whose
// condition holds:
//
//	state         condition                                 plans  starts jobs          repairs
//	stopping      Stop arrived                               no     no                   no
//	unobserved    no observation has succeeded yet           no     no                   no
//	recovering    a job that finishes interrupted moves      no     the next, if none    no
//	              runs or waits                                     runs
//	moving        another job runs or waits                  no     the next, if none    no
//	                                                                runs
//	outdated      a job ended after the last observation     no     -                    no
//	              began
//	unobservable  the last observation failed                no     -                    unless held
//	off           the policy's mode is off                   no     -                    unless held
//	held          paused, or outside maintenance windows     yes,   -                    no
//	                                                         advice
//	                                                         only
//	ready         none of the above                          yes    -                    yes
//
// While moves are held (paused, or outside maintenance windows), planned moves
// and repairs in the queue are dropped, recoveries wait, and moves that an
// operator accepted start.
//
// Two further states describe the controller's knowledge of the host. knowledge
// is unknown, current, or outdated (a job has ended since the observation).
// reading is idle, running, or overtaken (a job ended while it ran, so it may
// show a partial move).
//
//	event                     knowledge            reading
//	Ready.Observe             -                    idle -> running
//	JobEnded                  -> outdated          running -> overtaken
//	JobEnded with Seen        -> current           running -> overtaken
//	Observed, running         -> current           -> idle
//	Observed, overtaken       -                    -> idle; ignored if current
//	Observed with an error    -                    -> idle; the failure is reported
//
// While degraded_for passes, the controller asks for the mappings of guests that a plan
// would move (Ready.ReadClosely), and starts no job until CloselyRead arrives. A reading counts
// for some seconds, and until a job begins or ends.
//
// Files: controller.go has Step, event.go and ready.go its arguments and results;
// host.go the state of the host, closely.go mappings of guests that may move soon,
// loads.go measured loads, when.go when to plan, calm.go when samples may wait, order.go the order of a round,
// queue.go jobs, give_way.go a copy that others end, recover.go interrupted moves, pause.go pauses and maintenance
// windows, advice.go advised moves, competitors.go others that move pages,
// cooldown.go cooldowns after moves, rest.go what moves leave for a quiet time,
// alarms.go thresholds, policy.go changes of the policy, status.go the report.
package control
