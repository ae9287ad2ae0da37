"""All definitions of the domain: importing this module registers them."""

from tilewright.ops.contrib import attention as attention
from tilewright.ops.contrib import blockwise as blockwise
from tilewright.ops.contrib import conv as conv
from tilewright.ops.contrib import distance as distance
from tilewright.ops.contrib import embedding as embedding
from tilewright.ops.contrib import gelu as gelu
from tilewright.ops.contrib import grouped_query_attention as grouped_query_attention
from tilewright.ops.contrib import integer_matmul as integer_matmul
from tilewright.ops.contrib import inverse as inverse
from tilewright.ops.contrib import matmul as matmul
from tilewright.ops.contrib import ngram as ngram
from tilewright.ops.contrib import qlinear_conv as qlinear_conv
from tilewright.ops.contrib import qlinear_elementwise as qlinear_elementwise
from tilewright.ops.contrib import qlinear_pool as qlinear_pool
from tilewright.ops.contrib import qlinear_softmax as qlinear_softmax
from tilewright.ops.contrib import quantize as quantize
from tilewright.ops.contrib import quantized_attention as quantized_attention
from tilewright.ops.contrib import skip_normalization as skip_normalization
from tilewright.ops.contrib import standard_forms as standard_forms
from tilewright.ops.contrib import unique as unique
