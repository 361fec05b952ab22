// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/storage"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Keep is which series of agents and dcgm-exporters the windows have. The controller uses
// KeepAuto; tests and measurements choose one of its two states.
type Keep string

// The values of Keep.
const (
	KeepAuto Keep = "auto" // all if full windows will use less than half of their memory limit, else those that queries use
	KeepAll  Keep = "all"
	KeepUsed Keep = "used" // those that queries use
)

// DefaultLookback is the lookback of a Prometheus, and a millisecond: no subquery whose
// range and step are whole seconds reads exactly this time. The storage itself marks the
// end of series, so that a longer lookback shows no old values.
const DefaultLookback = 5*time.Minute + time.Millisecond

// Config is the configuration of a Store. Zero values take the defaults.
type Config struct {
	Keep     Keep          // KeepAuto by default
	Interval time.Duration // between two scrapes of a target; 1 s by default
	// Lookback is that of the engine that reads. It makes instant queries cheap.
	// DefaultLookback by default.
	Lookback time.Duration
	// MinAge is how long a value counts at least after its collection; 5 s by
	// default. Three intervals of its target are the minimum too.
	MinAge time.Duration
	// PodBytes is the memory limit of the index of pods for kube_pod_*; 64 MiB by
	// default.
	PodBytes int64
	// Job and Instance are those of the controller's own metrics and of kube_pod_*.
	Job, Instance string
}

func (c Config) withDefaults() Config {
	c.Keep = cmp.Or(c.Keep, KeepAuto)
	c.Interval = cmp.Or(c.Interval, time.Second)
	c.Lookback = cmp.Or(c.Lookback, DefaultLookback)
	c.MinAge = max(cmp.Or(c.MinAge, 5*time.Second), 3*c.Interval)
	c.PodBytes = cmp.Or(c.PodBytes, 64<<20)
	c.Job = cmp.Or(c.Job, "gpupilot-controller")
	c.Instance = cmp.Or(c.Instance, "localhost")
	return c
}

// Pods finds pods in memory. The pods are shared and not to be changed.
type Pods interface {
	Get(namespace, name string) (*corev1.Pod, bool)
	Select(namespace string, selector labels.Selector) []*corev1.Pod
}

// Deps are the collaborators of a Store.
type Deps struct {
	Windows *series.Store
	// Pods are the cluster's; nil: there are no kube_pod_* series, and the pods of
	// exporters' series are not verified.
	Pods Pods
	// Holder returns the API server's facts about a pod; nil: only its node is known.
	Holder func(*corev1.Pod) series.Holder
	// SetNames has the scraper keep the series of these names, or all of exporters, and those of namespaces of the
	// names in of.
	SetNames func(all bool, names []string, of map[string][]string)
	// Lines returns how many series the pages of exporters have; nil: 0.
	Lines func() int
	Own   prometheus.Gatherer // the controller's own metrics; nil: none
	Log   *slog.Logger        // nil discards
}

// Store is a storage.Queryable over the windows.
type Store struct {
	cfg    Config
	deps   Deps
	wanted wanted
	own    own
	now    func() time.Time

	lines int // that exporters' pages had at the last look; only Run uses it

	mu    sync.Mutex // of what follows: queries share the index and update it
	index index
	epoch uint64 // of the windows' exposures that index has; 0: none yet

	pods podSeries
}

var _ storage.Queryable = (*Store)(nil)

// New returns a store. Run keeps it up to date.
func New(cfg Config, deps Deps) *Store {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.SetNames == nil {
		deps.SetNames = func(bool, []string, map[string][]string) {}
	}
	s := &Store{cfg: cfg.withDefaults(), deps: deps, now: time.Now}
	s.wanted.init()
	s.index.init()
	s.pods.init(s)
	return s
}

// OwnLabels returns the labels job and instance of the controller's own metrics.
func (s *Store) OwnLabels() (job, instance string) { return s.cfg.Job, s.cfg.Instance }

// checkInterval is the time between two checks of the memory, of unused names and of
// the claims that are not settled.
const checkInterval = 5 * time.Second

// Run keeps the list of wanted names up to date and collects the controller's own
// metrics, until ctx is done.
func (s *Store) Run(ctx context.Context) {
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	collect := time.NewTicker(s.cfg.Interval)
	defer collect.Stop()
	s.check(s.now())
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			s.check(s.now())
		case <-s.wanted.added:
			s.publish()
		case at := <-collect.C:
			s.collectOwn(at)
			if s.undecided() {
				s.decide()
				s.publish()
			}
		}
	}
}

// check drops unused names, decides whether all series are kept, and verifies claims.
func (s *Store) check(now time.Time) {
	s.wanted.expire(now)
	s.expireGroupings(now)
	s.decide()
	if !s.wanted.hasPrefix("kube_") {
		s.pods.drop()
	}
	s.pods.prune(now)
	s.settle(now)
	s.publish()
}

// publish tells the scraper the wanted names, if they have changed.
func (s *Store) publish() {
	if all, names, of, changed := s.wanted.take(); changed {
		s.deps.SetNames(all, names, of)
	}
}

// decide decides whether the windows keep all series of exporters.
func (s *Store) decide() { s.wanted.setAll(s.keepsAll()) }

// undecided reports whether all series will be kept unless the pages turn out to be large.
func (s *Store) undecided() bool {
	return s.cfg.Keep == KeepAuto && s.wanted.shortAt == 0 && !s.wanted.keepsAll()
}

// keepsAll reports whether the windows keep all series of exporters. It counts what full
// windows will take, because labels that are read in and dropped minutes later leave holes
// in the heap. It does not begin while exporters' first pages still come in. After the
// memory was short, it takes a quarter of the targets to leave until all series are kept
// again.
func (s *Store) keepsAll() bool {
	if s.cfg.Keep != KeepAuto {
		return s.cfg.Keep == KeepAll
	}
	w, more := &s.wanted, 0
	if !w.keepsAll() && s.deps.Lines != nil {
		before := s.lines
		s.lines = s.deps.Lines()
		if more = s.lines; more == 0 || abs(more-before) > before/50 {
			return false
		}
	}
	st := s.deps.Windows.Stats()
	if s.deps.Windows.WholeBytes(more) > st.Limit/2 {
		w.shortAt = max(st.Targets, 1)
	} else if st.Targets < w.shortAt-w.shortAt/4 {
		w.shortAt = 0
	}
	return w.shortAt == 0
}

func abs(n int) int { return max(n, -n) }

// Querier returns a querier of samples within [mint, maxt], in ms since 1970.
func (s *Store) Querier(mint, maxt int64) (storage.Querier, error) {
	return &querier{s: s, mint: mint, maxt: maxt}, nil
}

// PodChanged handles a change of a pod: old is nil for a new pod, and pod is nil for a
// deleted one. It does not block.
func (s *Store) PodChanged(old, pod *corev1.Pod) {
	last := cmp.Or(pod, old)
	if last == nil {
		return
	}
	s.index.podChanged(last.Name)
	s.pods.changed(old, pod, s.now())
}
