// SPDX-License-Identifier: Apache-2.0

// Package hold is how a person on call overrides a GPUAutoscaler for a time, with the
// rights of the kubeconfig: gpupilot hold and gpupilot resume.
package hold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
)

// change is one change of an object's override.
type change struct {
	where  remote.Cluster
	dryRun bool

	replicas, least, most int32
	freeze, reason, until string
	lasts                 time.Duration
}

// Commands returns gpupilot hold and gpupilot resume.
func Commands() []*cobra.Command {
	var h, r change
	hold := &cobra.Command{
		Use:   "hold [NAMESPACE/]NAME --for DURATION --reason TEXT",
		Short: "Hold or bound the replicas of a GPUAutoscaler until a time",
		Long: `Hold or bound the replicas of a GPUAutoscaler until a time, whatever its signals ask for. It writes spec.override
with the rights of the kubeconfig, and replaces an earlier override. It ends by itself. Only the budget limits it.`,
		Example: `  gpupilot hold llm/chat --replicas 6 --for 4h --reason "incident 4711"
  gpupilot hold llm/chat --freeze Down --until 2026-11-24T18:00:00Z --reason "load test"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := h.override(cmd.Flags(), time.Now())
			if err != nil {
				return err
			}
			return h.write(cmd.Context(), cmd.OutOrStdout(), args, o)
		},
	}
	f := hold.Flags()
	f.Int32Var(&h.replicas, "replicas", 0, "hold this number of replicas")
	f.Int32Var(&h.least, "min-replicas", 0, "keep at least this number of replicas")
	f.Int32Var(&h.most, "max-replicas", 0, "keep at most this number of replicas")
	f.StringVar(&h.freeze, "freeze", "", "Up: no scale-up, Down: no scale-down, Both: no change")
	f.DurationVar(&h.lasts, "for", 0, "how long, such as 4h; at most 720h, which is 30 days")
	f.StringVar(&h.until, "until", "", "instead of --for: the time when it ends, such as 2026-11-24T18:00:00Z")
	f.StringVar(&h.reason, "reason", "", "why: an incident, a ticket, a name")
	hold.MarkFlagsMutuallyExclusive("replicas", "min-replicas", "max-replicas", "freeze")
	hold.MarkFlagsOneRequired("replicas", "min-replicas", "max-replicas", "freeze")
	hold.MarkFlagsMutuallyExclusive("for", "until")
	hold.MarkFlagsOneRequired("for", "until")
	_ = hold.MarkFlagRequired("reason") // the flag exists
	resume := &cobra.Command{
		Use:   "resume [NAMESPACE/]NAME",
		Short: "End the override of a GPUAutoscaler, so that its signals set the replicas again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.write(cmd.Context(), cmd.OutOrStdout(), args, nil)
		},
	}
	for cmd, c := range map[*cobra.Command]*change{hold: &h, resume: &r} {
		c.where.Flags(cmd.Flags())
		cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "let the API server check the change, and change nothing")
	}
	return []*cobra.Command{hold, resume}
}

// override returns the override of the flags.
func (c *change) override(f *pflag.FlagSet, now time.Time) (*v1alpha1.Override, error) {
	o := &v1alpha1.Override{Freeze: v1alpha1.Freeze(c.freeze), Reason: c.reason}
	for name, n := range map[string]struct {
		from *int32
		to   **int32
	}{"replicas": {&c.replicas, &o.Replicas}, "min-replicas": {&c.least, &o.MinReplicas}, "max-replicas": {&c.most, &o.MaxReplicas}} {
		if f.Changed(name) {
			*n.to = n.from
		}
	}
	end := now.Add(c.lasts).Truncate(time.Second)
	if c.until != "" {
		var err error
		if end, err = time.Parse(time.RFC3339, c.until); err != nil {
			return nil, fmt.Errorf("--until %q: want a time with its zone, such as 2026-11-24T18:00:00Z", c.until)
		}
	}
	switch {
	case !end.After(now):
		return nil, fmt.Errorf("it would end at %s, which is not in the future", policy.Clock(end))
	case end.Sub(now) > policy.LongestOverride:
		return nil, errors.New("it would last longer than 30 days; change minReplicas and maxReplicas for a longer time")
	}
	o.Until = metav1.Time{Time: end.UTC()}
	return o, nil
}

// write sets the override of the object, or removes it if o is nil.
func (c *change) write(ctx context.Context, out io.Writer, args []string, o *v1alpha1.Override) error {
	namespace, name, err := c.where.Object(args)
	if err != nil {
		return err
	}
	api, err := c.where.API()
	if err != nil {
		return err
	}
	path := []string{"apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "namespaces", namespace, "gpuautoscalers", name}
	now := &unstructured.Unstructured{}
	if err := api.Do(ctx, http.MethodGet, nil, now, path...); err != nil {
		return fmt.Errorf("read GPUAutoscaler %s/%s: %w", namespace, name, err)
	}
	before := describe(now)
	if o == nil && before == "" {
		_, err := fmt.Fprintf(out, "%s/%s has no override\n", namespace, name)
		return err
	}
	after := &unstructured.Unstructured{}
	if err := api.MergePatch(ctx, patchOf(o), c.dryRun, after, path...); err != nil {
		return fmt.Errorf("change GPUAutoscaler %s/%s: %w", namespace, name, err)
	}
	verb := ""
	if c.dryRun {
		verb = "dry run, nothing was changed: "
	}
	if o == nil {
		_, err := fmt.Fprintf(out, "%s%s/%s: the override has ended: %s\n", verb, namespace, name, before)
		return err
	}
	fmt.Fprintf(out, "%s%s/%s: %s\n", verb, namespace, name, describe(after))
	if before != "" {
		fmt.Fprintf(out, "instead of: %s\n", before)
	}
	if a, _, _ := policy.Decode(after); a.Spec.Actuation == v1alpha1.ActuationAdvise {
		fmt.Fprintln(out, "its actuation is Advise: it reports this number and does not set it")
	}
	return nil
}

// patchOf returns the merge patch that replaces the override.
func patchOf(o *v1alpha1.Override) map[string]any {
	var override map[string]any // nil removes it
	if o != nil {
		override = map[string]any{"replicas": o.Replicas, "minReplicas": o.MinReplicas, "maxReplicas": o.MaxReplicas, "freeze": nil, "until": o.Until, "reason": o.Reason}
		if o.Freeze != "" {
			override["freeze"] = o.Freeze
		}
	}
	return map[string]any{"spec": map[string]any{"override": override}}
}

// describe says what the override of an object does; empty: it has none.
func describe(u *unstructured.Unstructured) string {
	a, bad, _ := policy.Decode(u)
	if bad != nil || a.Spec.Override == nil {
		return ""
	}
	o, err := policy.CompileOverride(a.Spec.Override)
	if err != nil {
		return "an invalid override"
	}
	return o.What + ", " + o.String()
}
