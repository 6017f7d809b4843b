package daemon

import "time"

// looks watches, between two samples, how much CPU time all guests use together. That costs one file, and shows guests
// that begin to work up to a sample earlier.
type looks struct {
	timer *time.Timer // the next look, if the controller wants any
	on    bool        // it runs
	at    time.Time   // of the last look; zero: there is none to compare with
	used  time.Duration
}

// looksPerSample is how many looks are taken in the time between two samples.
const looksPerSample = 8

// lookAgain schedules a look if there is none: an event may have ended what made a surge no reason for a sample.
func (l *loop) lookAgain() {
	if !l.looks.on {
		l.lookLater()
	}
}

// lookLater schedules the next look, if a surge would be a reason for a sample.
func (l *loop) lookLater() {
	if l.looks.on = l.Used != nil && l.controller.Surge() > 0; !l.looks.on {
		l.looks.timer.Stop()
		l.looks.at = time.Time{}
		return
	}
	l.looks.timer.Reset(l.Every / looksPerSample)
}

// look takes a sample if guests use much more than in the last one.
func (l *loop) look() {
	before, now := l.looks, time.Now()
	used, err := l.Used()
	if err != nil {
		l.looks.on, l.looks.at = false, time.Time{}
		return // the regular samples are enough
	}
	l.looks.at, l.looks.used = now, used
	from, passed := l.controller.Surge(), now.Sub(before.at)
	if from > 0 && !before.at.IsZero() && passed > 0 && (used-before.used).Seconds() >= from*passed.Seconds() {
		l.turn()
	}
	l.lookLater()
}
