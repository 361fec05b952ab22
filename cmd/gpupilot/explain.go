// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/bounds"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/serve/remote"
)

// explainCommand prints the last decision of a GPUAutoscaler from its status, which
// needs only the user's own credentials.
func explainCommand() *cobra.Command {
	var where remote.Cluster
	cmd := &cobra.Command{
		Use:   "explain [NAMESPACE/]NAME",
		Short: "Print the last decision for a GPUAutoscaler, its reasons, and what would change it",
		Long: `Print the last decision for a GPUAutoscaler, its reasons and values, and what would change it. For the last
part the decision engine is run again with changed signals, from the state in the object's status.
Without a name, all GPUAutoscalers of the namespace are printed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := where.Object(args)
			if err != nil {
				return err
			}
			c, err := where.API()
			if err != nil {
				return err
			}
			all, err := autoscalers(cmd.Context(), c, namespace, name)
			if err != nil {
				return err
			}
			for i := range all {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				all[i].explain(cmd.OutOrStdout(), time.Now())
			}
			return nil
		},
	}
	where.Flags(cmd.Flags())
	return cmd
}

// autoscalers reads the GPUAutoscaler of that name, or all of the namespace.
func autoscalers(ctx context.Context, c *remote.API, namespace, name string) ([]stored, error) {
	path := []string{"apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "namespaces", namespace, "gpuautoscalers"}
	if name != "" {
		u := &unstructured.Unstructured{}
		if err := c.Do(ctx, http.MethodGet, nil, u, append(path, name)...); err != nil {
			return nil, fmt.Errorf("read GPUAutoscaler %s/%s: %w", namespace, name, err)
		}
		return []stored{decoded(u)}, nil
	}
	list := &unstructured.UnstructuredList{}
	if err := c.Do(ctx, http.MethodGet, nil, list, path...); err != nil {
		return nil, fmt.Errorf("list GPUAutoscalers of %s: %w", namespace, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no GPUAutoscaler in namespace %s", namespace)
	}
	out := make([]stored, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, decoded(&list.Items[i]))
	}
	return out, nil
}

// stored is a GPUAutoscaler with its decoding errors. Objects are decoded one by one, so
// that a malformed one does not hide the others.
type stored struct {
	object            *v1alpha1.GPUAutoscaler
	badSpec, badState error
}

func decoded(u *unstructured.Unstructured) stored {
	a, badSpec, badState := policy.Decode(u)
	return stored{a, badSpec, badState}
}

// explain writes the last decision and the decoding errors.
func (s *stored) explain(out io.Writer, now time.Time) {
	if s.badSpec != nil {
		fmt.Fprintf(out, "%s/%s has a spec that cannot be read: %v\n", s.object.Namespace, s.object.Name, s.badSpec)
		return
	}
	if s.badState != nil {
		fmt.Fprintf(out, "%s/%s has a status that cannot be read: %v\n", s.object.Namespace, s.object.Name, s.badState)
	}
	explain(out, s.object, now)
}

// explain writes the last decision of a.
func explain(out io.Writer, a *v1alpha1.GPUAutoscaler, now time.Time) {
	s := &a.Status
	desired := "nothing decided"
	if s.DesiredReplicas != nil {
		desired = fmt.Sprintf("%d desired", *s.DesiredReplicas)
	}
	fmt.Fprintf(out, "%s/%s scales %s %s: %d now, %d serving, %d starting, %s\n",
		a.Namespace, a.Name, a.Spec.ScaleTargetRef.Kind, a.Spec.ScaleTargetRef.Name,
		s.CurrentReplicas, s.ServingReplicas, s.StartingReplicas, desired)
	for _, c := range s.Conditions {
		if bounds.IsNotable(&c) {
			fmt.Fprintf(out, "  %s is %s (%s): %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, p := range s.Pending {
		fmt.Fprintf(out, "  %d held up by %s: %s\n", p.Replicas, p.Reason, p.Message)
	}
	if s.Startup != nil {
		fmt.Fprintf(out, "a replica takes %d s to serve (p95 %d s, %d starts seen)\n", s.Startup.P50Seconds, s.Startup.P95Seconds, s.Startup.Samples)
	}
	for _, o := range s.Objectives {
		fmt.Fprintf(out, "objective of %s: %s\n", o.Signal, o.Message)
	}
	d := s.LastDecision
	if d == nil {
		fmt.Fprintln(out, "nothing decided yet")
		return
	}
	fmt.Fprintf(out, "decided %s ago, %s:\n", now.Sub(d.Time.Time).Round(time.Second), d.Reason)
	for _, st := range d.Steps {
		fmt.Fprintf(out, "  %d → %d  %-14s %s\n", st.Before, st.After, st.Rule, st.Message)
	}
	for _, in := range d.Inputs {
		value := "not readable"
		if in.Value != "" {
			value = fmt.Sprintf("%s%s, %d ms old, from %d", in.Value, unit(in.Unit), in.AgeMilliseconds, in.Replicas)
		}
		mark := ""
		if in.Deciding && len(d.Inputs) > 1 {
			mark = ", decides"
		}
		fmt.Fprintf(out, "  input %s: %s (target %s%s)%s\n", in.Signal, value, in.Target, unit(in.Unit), mark)
	}
	explainChanges(out, a)
}

// unit returns a unit as a suffix of a number.
func unit(u string) string {
	if u == "" {
		return ""
	}
	return " " + u
}
