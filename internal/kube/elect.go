// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// ElectionConfig says which lease is held as whom. Zero durations take the
// defaults. They are half of client-go's: to be demoted costs a replica nothing
// here, and until a crashed leader's lease ends nothing scales.
type ElectionConfig struct {
	Leases    coordinationv1client.LeasesGetter
	Namespace string
	Name      string
	Identity  string // of this replica

	Lease time.Duration // how long others wait for one that fell silent; 8 s
	Renew time.Duration // how long a leader that cannot renew goes on; 5 s
	Retry time.Duration // between attempts; 1 s

	// Changed is called when this replica begins or ceases to lead. May be nil.
	Changed func(leading bool)
	Log     *slog.Logger // nil discards
}

// Election is one replica's part in choosing the leader. Losing the lease
// demotes: the replica stands again, it never exits.
type Election struct {
	cfg     ElectionConfig
	elector *leaderelection.LeaderElector
	leading atomic.Pointer[context.Context] // of the term; nil: none
}

// NewElection makes an election that does nothing before Run.
func NewElection(cfg ElectionConfig) (*Election, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for d, otherwise := range map[*time.Duration]time.Duration{
		&cfg.Lease: 8 * time.Second, &cfg.Renew: 5 * time.Second, &cfg.Retry: time.Second,
	} {
		if *d <= 0 {
			*d = otherwise
		}
	}
	e := &Election{cfg: cfg}
	var err error
	e.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Name},
			Client:     cfg.Leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
		},
		LeaseDuration: cfg.Lease, RenewDeadline: cfg.Renew, RetryPeriod: cfg.Retry,
		ReleaseOnCancel: true, Name: cfg.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: e.begin,
			OnStoppedLeading: e.end,
			OnNewLeader:      func(id string) { cfg.Log.Info("leader", "identity", id) },
		},
	})
	if err != nil {
		return nil, fmt.Errorf("lease %s/%s: %w", cfg.Namespace, cfg.Name, err)
	}
	return e, nil
}

func (e *Election) begin(ctx context.Context) {
	if ctx.Err() != nil {
		return // client-go calls this in a goroutine of its own: the term may be over
	}
	e.leading.Store(&ctx)
	e.changed(true)
}

func (e *Election) end() {
	if e.leading.Swap(nil) != nil {
		e.changed(false)
	}
}

func (e *Election) changed(leading bool) {
	e.cfg.Log.Info("leadership", "leading", leading, "identity", e.cfg.Identity)
	if e.cfg.Changed != nil {
		e.cfg.Changed(leading)
	}
}

// Run stands for election until ctx is done, and releases the lease then.
func (e *Election) Run(ctx context.Context) {
	// The elector logs an error at each attempt.
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(&sparse{Handler: e.cfg.Log.Handler()}))
	for ctx.Err() == nil {
		e.elector.Run(ctx)
	}
}

// Leading says whether this replica may write now. It turns false before
// another replica's turns true, even while the API server does not answer.
func (e *Election) Leading() bool {
	term := e.leading.Load()
	return term != nil && (*term).Err() == nil && e.elector.IsLeader() &&
		e.elector.Check(e.cfg.Renew-e.cfg.Lease) == nil
}

// sparse lets one line a minute of warnings and errors through, and no others.
type sparse struct {
	slog.Handler
	last atomic.Int64 // unix seconds
}

const sparseGap = 60 // s

// Enabled is slog.Handler's.
func (s *sparse) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && s.Handler.Enabled(ctx, l)
}

// Handle is slog.Handler's.
func (s *sparse) Handle(ctx context.Context, r slog.Record) error {
	last := s.last.Load()
	if r.Time.Unix()-last < sparseGap || !s.last.CompareAndSwap(last, r.Time.Unix()) {
		return nil
	}
	return s.Handler.Handle(ctx, r)
}

// WithAttrs is slog.Handler's; the lines keep their common pace.
func (s *sparse) WithAttrs([]slog.Attr) slog.Handler { return s }

// WithGroup is slog.Handler's.
func (s *sparse) WithGroup(string) slog.Handler { return s }

// Leader is the identity of who leads as far as is known, else empty.
func (e *Election) Leader() string { return e.elector.GetLeader() }
