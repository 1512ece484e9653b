"""Random queries, and keys and values in pages."""

import torch

from stepladder.engines.paged.kv_cache import PAGE_SIZE

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def states(
    rows: int, kept: int, groups: int, size: int, columns: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries of one token per row, keys, values, the page table, rows and positions."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    query_RHD = drawn(kept * groups, rows, size).transpose(0, 1)  # as transformers hands it over
    each = -(-columns // PAGE_SIZE)
    keys_NKTD, values_NKTD = (drawn(rows * each + 5, kept, PAGE_SIZE, size) for _ in range(2))
    table_RP = torch.randperm(rows * each + 5, generator=generator)[: rows * each].view(rows, each)
    positions_R = torch.randint(0, columns, (rows,), generator=generator)
    positions_R[0], positions_R[-1] = columns - 1, 0
    rows_R = torch.arange(rows)
    return query_RHD, keys_NKTD, values_NKTD, table_RP.to(DEVICE), rows_R.to(DEVICE), positions_R.to(DEVICE)
