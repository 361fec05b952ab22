// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// ClaimDriver is the driver of the GPUs that pods hold by resource claims. A GPU is device gpu-I of the pool with its
// node's name.
const ClaimDriver = "gpu.nvidia.com"

const claimDevice = "gpu-"

// PublishSlices publishes the GPUs of all nodes for resource claims, as the driver does. The scheduler does not know that a
// GPU is a device of the device plugin, too: pods that use both are rejected where both have chosen the same one.
func (n *Nodes) PublishSlices(ctx context.Context) error {
	for _, nd := range n.all() {
		s := &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: nd.name + "-gpus"},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: ClaimDriver, NodeName: &nd.name,
				Pool: resourcev1.ResourcePool{Name: nd.name, Generation: 1, ResourceSliceCount: 1},
			},
		}
		for i := range nd.gpus {
			kind, uuid := "gpu", n.cfg.DeviceID(nd.name, i)
			s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
				Name:       claimDevice + strconv.Itoa(i),
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"type": {StringValue: &kind}, "uuid": {StringValue: &uuid}},
			})
		}
		if _, err := n.client.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("publish the GPUs of %s: %w", nd.name, err)
		}
	}
	return nil
}

// claimed is a GPU that a container holds by a claim.
type claimed struct {
	gpu              int
	container, claim string
}

// claims reads which GPUs the scheduler has allocated to the pod's claims.
func (p *podRun) claims(ctx context.Context) (out []claimed, err error) {
	for _, ref := range p.pod.Spec.ResourceClaims {
		name := claimName(p.pod, &ref)
		claim, err := p.nodes.client.ResourceV1().ResourceClaims(p.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("claim %s: %w", ref.Name, err)
		}
		if claim.Status.Allocation == nil {
			return nil, fmt.Errorf("claim %s is not allocated", name)
		}
		container := ""
		for i := range p.pod.Spec.Containers {
			c := &p.pod.Spec.Containers[i]
			if slices.ContainsFunc(c.Resources.Claims, func(x corev1.ResourceClaim) bool { return x.Name == ref.Name }) {
				container = c.Name
				break
			}
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			i, err := strconv.Atoi(strings.TrimPrefix(r.Device, claimDevice))
			if err != nil || r.Driver != ClaimDriver || r.Pool != p.node.name || i >= p.node.gpus {
				return nil, fmt.Errorf("claim %s has the device %s of %s, %s", name, r.Device, r.Pool, r.Driver)
			}
			out = append(out, claimed{i, container, name})
		}
	}
	return out, nil
}

// claimName is the name of a pod's claim: one that it shares, or that was made for it.
func claimName(pod *corev1.Pod, ref *corev1.PodResourceClaim) string {
	if ref.ResourceClaimName != nil {
		return *ref.ResourceClaimName
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == ref.Name && s.ResourceClaimName != nil {
			return *s.ResourceClaimName
		}
	}
	return ""
}

// addClaimed lists a GPU of a claim. Each claim has one entry.
func addClaimed(c *podresources.ContainerResources, namespace, claim, pool string, gpu int) {
	i := slices.IndexFunc(c.DynamicResources, func(d *podresources.DynamicResource) bool { return d.ClaimName == claim })
	if i < 0 {
		i = len(c.DynamicResources)
		c.DynamicResources = append(c.DynamicResources, &podresources.DynamicResource{ClaimName: claim, ClaimNamespace: namespace})
	}
	d := c.DynamicResources[i]
	d.ClaimResources = append(d.ClaimResources, &podresources.ClaimResource{DriverName: ClaimDriver, PoolName: pool, DeviceName: claimDevice + strconv.Itoa(gpu)})
}
