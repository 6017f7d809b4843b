package etcd

import (
	"context"
	"log/slog"
	"runtime"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapCore passes etcd's log on: warnings and errors as such, the rest as debug messages. The
// first fatal message, such as a failed write to the disk, is the reason for which the store fails;
// etcd would end the process.
type zapCore struct {
	to     *slog.Logger
	fields []zapcore.Field

	fatal *fatal
}

type fatal struct {
	once   sync.Once
	failed chan struct{}
	reason string
}

func newZapCore(to *slog.Logger) *zapCore {
	return &zapCore{to: to.With("source", "etcd"), fatal: &fatal{failed: make(chan struct{})}}
}

func (c *zapCore) logger() *zap.Logger { return zap.New(c, zap.WithFatalHook(c.fatal)) }

func level(l zapcore.Level) slog.Level {
	switch l {
	case zapcore.WarnLevel:
		return slog.LevelWarn
	case zapcore.ErrorLevel, zapcore.DPanicLevel, zapcore.PanicLevel, zapcore.FatalLevel:
		return slog.LevelError
	default: // debug and info: etcd informs about much
		return slog.LevelDebug
	}
}

func (c *zapCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.FatalLevel || c.to.Enabled(context.Background(), level(l))
}

func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	with := *c
	with.fields = append(append([]zapcore.Field(nil), c.fields...), fields...)
	return &with
}

// harmless are warnings at each start about what Numavisor does not use: etcd listens for no clients, and has no
// users.
func harmless(message string) bool {
	return message == "Running http and grpc server on single port. This is not recommended for production." ||
		message == "simple token is not cryptographically signed"
}

func (c *zapCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Level == zapcore.WarnLevel && harmless(e.Message) {
		e.Level = zapcore.DebugLevel
	}
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range append(append([]zapcore.Field(nil), c.fields...), fields...) {
		f.AddTo(values)
	}
	var attributes []slog.Attr
	for name, value := range values.Fields {
		attributes = append(attributes, slog.Any(name, value))
	}
	c.to.LogAttrs(context.Background(), level(e.Level), e.Message, attributes...)
	return nil
}

func (c *zapCore) Sync() error { return nil }

// OnWrite ends the goroutine of etcd that cannot go on, instead of the process.
func (f *fatal) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	f.once.Do(func() {
		f.reason = ce.Message
		for _, field := range fields {
			if err, ok := field.Interface.(error); ok {
				f.reason += ": " + err.Error()
			}
		}
		close(f.failed)
	})
	runtime.Goexit()
}

// why is the reason of the failure; empty: none.
func (f *fatal) why() string {
	select {
	case <-f.failed:
		return f.reason
	default:
		return ""
	}
}
